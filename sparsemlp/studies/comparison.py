"""A study beside the published numbers: differences where the setting is the same, else why not."""

import dataclasses
import math
from collections.abc import Iterable, Iterator

from sparsemlp.configuration.config import CHANGEABLE, Config
from sparsemlp.configuration.mask_options import OF_A_MASK
from sparsemlp.configuration.settings import REPLACED, Settings, depth_and_plan, resolve
from sparsemlp.plan import masks_alone
from sparsemlp.studies.published import PUBLISHED, Published
from sparsemlp.studies.run_costs import RunCosts, masking_by_kind, run_costs
from sparsemlp.studies.seeds import Seeds, by_seed
from sparsemlp.studies.study import Study
from sparsemlp.studies.study_run import StudyRun

_FREE = frozenset(
    {
        *("block", "ratio", "backward", "config", "seed", "dataset"),
        *("engine", "score", *CHANGEABLE),
    }
)
"""Options that are compared otherwise, change rounding at most, or that the thesis leaves open."""
_BY_EPOCHS = frozenset({"mask_start_epoch", "warmup_epochs"})
"""Options whose defaults follow from the number of epochs."""
_OF_COSTS = ("model", "patch_size", "dim", "depth", "expansion", "epochs", "batch_size", "hold_out")
"""Options that the published costs depend on, beside the mask."""
_OF_MASKED_COSTS = ("mask_layers", "budget", "ratio_schedule")
_DATA_SETS = {"cifar10": "CIFAR-10", "imagenet2012": "ImageNet"}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A published number and ours.

    Attributes:
      published: the number.
      run: what was run, in words; empty if nothing was.
      n_runs: runs that differ in their seed alone.
      value: mean over them; None without a run.
      spread: sample standard deviation over them, NaN for one.
      difference: ours minus the published one; None where the setting is not the same.
      note: why there is none, or what to know about it.
    """

    published: Published
    run: str = ""
    n_runs: int = 0
    value: float | None = None
    spread: float = math.nan
    difference: float | None = None
    note: str = ""


def compare(study: Study) -> list[Comparison]:
    """Every published number beside the runs of a study that it belongs to.

    A number of a run that the study has not trained has one comparison without a value; those of
    models that it has no run of are left out, but for the thesis' main one.
    """
    groups = by_seed(study.finished)
    models = {run.settings.model for run in study.runs if run.settings is not None} | {"resmlp"}
    wanted = [published for published in PUBLISHED if published.model in models]
    return [found for published in wanted for found in _compare(study, published, groups)]


def _compare(study: Study, published: Published, groups: list[Seeds]) -> Iterator[Comparison]:
    chosen = [group for group in groups if _belongs(published, group.first)]
    if not chosen:
        yield Comparison(published, note="no finished run of this kind")
    if published.quantity != "test_top1":
        chosen = _distinct_costs(published, chosen)
    for group in chosen:
        mean, spread = group.statistics(lambda run: _ours(published, run))
        run = study.label(group.first)
        if math.isnan(mean):
            lacking = "it has no accuracy"
            if published.quantity != "test_top1":
                lacking = "the cost models do not know it"
            yield Comparison(published, run, len(group.runs), note=lacking)
            continue
        others = why_not_comparable(published, group.first)
        difference = None if others else mean - published.value
        note = f"not comparable: {others}" if others else _note(published, group.first, mean)
        yield Comparison(published, run, len(group.runs), mean, spread, difference, note)


def _belongs(published: Published, run: StudyRun) -> bool:
    if run.settings is None or run.settings.model != published.model:
        return False
    if published.block is None:
        return run.is_dense
    masking = run.masking
    return (
        masking is not None
        and (run.block, masking.ratio) == (published.block, published.ratio)
        and published.backward in (None, masking.backward)
    )


def _distinct_costs(published: Published, groups: list[Seeds]) -> list[Seeds]:
    """Of groups that cost the same on paper in the same setting the first."""
    found: dict[tuple[str, str], Seeds] = {}
    for group in groups:
        key = repr(_ours(published, group.first)), why_not_comparable(published, group.first)
        found.setdefault(key, group)
    return list(found.values())


def _ours(published: Published, run: StudyRun) -> float:
    if published.quantity == "test_top1":
        return run.last("test_top1")
    costs: RunCosts | None = run_costs(run)
    return math.nan if costs is None else float(getattr(costs, published.quantity))


def why_not_comparable(published: Published, run: StudyRun) -> str:
    """What of a run is not as in the thesis, in words; empty where the setting is the same."""
    settings = run.settings
    if settings is None:
        return "its configuration cannot be read"
    thesis = resolve(
        Config(
            model=published.model,
            dataset=published.dataset,
            block=published.block,
            ratio=published.ratio or None,
        ),
        published.dataset,
    )
    names = _OF_COSTS
    if published.quantity == "test_top1":
        free = _FREE | OF_A_MASK if published.block is None else _FREE
        names = tuple(f.name for f in dataclasses.fields(Settings) if f.name not in free)
    elif published.block is not None:
        names = (*_OF_COSTS, *_OF_MASKED_COSTS)
    differences = list(_differences(names, settings, thesis, run))
    if settings.config is not None:
        whole = published.quantity == "test_top1"
        differences = [*_of_model_string(settings, thesis, other_rules=whole), *differences]
    return "; ".join(differences)


def _of_model_string(settings: Settings, thesis: Settings, *, other_rules: bool) -> Iterator[str]:
    """How depth and masked layers of a model string differ from the thesis'."""
    (depth, plan), (its_depth, its_plan) = map(depth_and_plan, (settings, thesis))
    if depth != its_depth:
        yield f"depth is {depth}, the thesis' is {its_depth}"
    ours, theirs = (", ".join(masking_by_kind(each)) for each in (plan, its_plan))
    if ours != theirs:
        yield f"masked layers are {ours or 'none'}, the thesis' are {theirs or 'none'}"
    if other_rules and not masks_alone(plan):
        yield "activations or gradients are pruned"


def _differences(
    names: Iterable[str], settings: Settings, thesis: Settings, run: StudyRun
) -> Iterator[str]:
    if settings.dataset != thesis.dataset:
        yield f"the data set is {run.dataset}, the thesis' is {_DATA_SETS[thesis.dataset]}"
    shorter = settings.epochs != thesis.epochs
    for name in sorted(names, key=lambda name: name != "epochs"):
        ours, theirs = getattr(settings, name), getattr(thesis, name)
        if settings.config is not None and name in REPLACED:
            continue
        if ours != theirs and not (shorter and name in _BY_EPOCHS):
            yield f"{name} is {ours}, the thesis' is {theirs}"


def _note(published: Published, run: StudyRun, value: float) -> str:
    notes = []
    if published.bound == "above":
        below = value < published.value
        notes.append("the thesis gives a bound: " + ("at least so far below" if below else "kept"))
    if published.quantity == "test_top1" and "JPEG" in run.dataset:
        notes.append("trained on a JPEG transcode of the images, which costs a little")
    if published.quantity != "test_top1":
        notes.append("theoretical")
    return "; ".join(notes)
