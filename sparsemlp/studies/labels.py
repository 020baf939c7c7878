"""What figures and tables call the runs of a study: what sets them apart, and nothing else."""

import dataclasses
import fnmatch
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sparsemlp.configuration.config import OF_THE_MACHINE, Config
from sparsemlp.configuration.mask_options import NEED_A_MASK, OF_A_MASK
from sparsemlp.configuration.recipes import recipe
from sparsemlp.configuration.settings import Settings, depth_and_plan, resolve
from sparsemlp.plan import as_tuple
from sparsemlp.rules import BlockMasking, Rule, describe_rule
from sparsemlp.studies.study_run import StudyRun

_RULE = frozenset({"block", "ratio", "backward", "config"})
"""Options that figures have axes and colours for."""
_OTHER_RULES = frozenset({"activation", "gradient", "gradient_method"})
"""Options that say what a model string says in its own way, beside masks."""
_TOLD = frozenset({"mask_layers", "score", *NEED_A_MASK}) | _OTHER_RULES
"""Options that the label of a run tells already."""
_OF_SOME = frozenset({"depth", "mask_layers", "ramp_epochs", "gradient_method"})
"""Options that are None where there is nothing they could apply to, which other options say."""
_NOT_DONE: dict[str, Any] = {
    "hold_out": 0.0,
    "remat": False,
    "accumulate": 1,
    "ema": 0.0,
    "drop_path": 0.0,
    "cutout": 0,
    "flip_test": False,
    "allow_nan": False,
}
"""Values of options that say that something is not done, which nobody need be told of."""
_BY_OTHERS = ("warmup_lr", "warmup_epochs", "mask_start_epoch")
"""Options whose defaults follow from others, and then need not be said beside them."""


class _Skeleton(NamedTuple):
    """What a model string says in one option with its ratio."""

    depth: int | None
    masked: str
    rules: str


class Labels:
    """The words for each of some runs.

    Args:
      runs: the runs that are told apart.
    """

    def __init__(self, runs: Sequence[StudyRun]) -> None:
        known = [run for run in runs if run.settings is not None]
        masked = [run for run in known if run.masking is not None]
        self._differing = _worth_saying(known)
        self._of_masked = [name for name in _worth_saying(masked) if name not in _RULE | {"seed"}]
        skeletons = {_skeleton(run) for run in masked}
        given = any(run.settings is not None and run.settings.config for run in masked)
        self._depths_differ = given and len({skeleton.depth for skeleton in skeletons}) > 1
        self._layers_differ = given and len({skeleton.masked for skeleton in skeletons}) > 1
        self._rules_differ = given and len({skeleton.rules for skeleton in skeletons}) > 1
        told = _OTHER_RULES if self._rules_differ else frozenset[str]()
        told |= {"depth"} if self._depths_differ else set()
        told |= {"mask_layers"} if self._layers_differ else set()
        self._of_masked = [name for name in self._of_masked if name not in told]
        self._usual = _of_models(known)
        trained = [run for run in known if run.records]
        names = {run.settings.dataset for run in trained if run.settings is not None}
        self._sources_differ = len({run.dataset for run in trained}) > len(names)

    def variant(self, run: StudyRun) -> str:
        """What sets a masked run apart beside block, ratio, backward pass and seed, in words."""
        skeleton = _skeleton(run)
        words = [f"depth {skeleton.depth}"] if self._depths_differ else []
        words += [f"{skeleton.masked} masked"] if self._layers_differ and skeleton.masked else []
        words += [skeleton.rules] if self._rules_differ else []
        words += [self._in_words(run, self._of_masked), self._source(run)]
        return ", ".join(filter(None, words))

    def label(self, run: StudyRun) -> str:
        """The masking of a run in words, and what else sets it apart but its seed."""
        ignored = _RULE | _TOLD | {"seed"} | _not_of(run)
        words = self._in_words(run, (name for name in self._differing if name not in ignored))
        others = ", ".join(filter(None, [words, self._source(run)]))
        return f"{run.label} ({others})" if others else run.label

    def other_options(self, run: StudyRun) -> str:
        """The options that differ between runs, beside block, ratio, backward pass and seed."""
        ignored = _RULE | {"seed"} | _not_of(run)
        if run.masking is None or self._depths_differ or self._layers_differ or self._rules_differ:
            ignored -= {"config"}
        words = self._in_words(run, (name for name in self._differing if name not in ignored))
        return ", ".join(filter(None, [words, self._source(run)]))

    def _in_words(self, run: StudyRun, names: Iterable[str]) -> str:
        """Options with their values, but for what is not done or follows from other options."""
        if run.settings is None:
            return ""
        settings = run.settings
        usual = _followed(settings.model, settings.lr, settings.epochs, settings.dataset)
        usual = usual | NEED_A_MASK | _NOT_DONE | self._usual.get(settings.model, {})
        values = {name: getattr(settings, name) for name in names}
        said = {n: v for n, v in values.items() if v is not None and v != usual.get(n)}
        return ", ".join(f"{name}={value}" for name, value in said.items())

    def _source(self, run: StudyRun) -> str:
        """What a run says of its images beyond their name, if runs of one name differ in it."""
        own = run.settings is not None and run.dataset == run.settings.dataset
        return f"on {run.dataset}" if self._sources_differ and run.records and not own else ""


def differing_options(runs: Iterable[StudyRun]) -> tuple[str, ...]:
    """Names of the options that differ between runs, in the order of `Config`."""
    known = [run.settings for run in runs if run.settings is not None]
    names = [f.name for f in dataclasses.fields(Settings) if f.name not in OF_THE_MACHINE]
    return tuple(name for name in names if len({repr(getattr(s, name)) for s in known}) > 1)


def _worth_saying(runs: Iterable[StudyRun]) -> list[str]:
    """The options that differ, but for those that the runs which have them at all agree on."""
    known = [run.settings for run in runs if run.settings is not None]

    def differs(name: str) -> bool:
        values = (getattr(settings, name) for settings in known)
        return len({repr(value) for value in values if value is not None}) > 1

    return [n for n in differing_options(runs) if n not in _OF_SOME or differs(n)]


def _skeleton(run: StudyRun) -> _Skeleton:
    depth, given = (None, {}) if run.settings is None else depth_and_plan(run.settings)
    masked = [pattern for pattern in sorted(run.plan) if _masks(run.plan[pattern])]
    # A mask that drops nothing spares what a wider pattern masks.
    spared = [
        pattern
        for pattern in sorted(given)
        if _masks(given[pattern]) and pattern not in masked
        if any(fnmatch.fnmatchcase(pattern, wider) for wider in masked)
    ]
    others: dict[str, list[str]] = {}
    for pattern in sorted(run.plan):
        for rule in as_tuple(run.plan[pattern]):
            if not isinstance(rule, BlockMasking):
                others.setdefault(describe_rule(rule), []).append(_layer(pattern))
    rules = ", ".join(f"{words} in {' '.join(layers)}" for words, layers in others.items())
    but = f" but {' '.join(map(_layer, spared))}" if spared else ""
    return _Skeleton(depth, " ".join(map(_layer, masked)) + but, rules)


def _masks(rules: Rule | tuple[Rule, ...]) -> bool:
    return any(isinstance(rule, BlockMasking) for rule in as_tuple(rules))


def _layer(pattern: str) -> str:
    return pattern.removesuffix("/kernel").removeprefix("*/").rstrip("?")


def _not_of(run: StudyRun) -> frozenset[str]:
    """The options of masks, of a run that has none; other rules have layers too."""
    if run.is_masked:
        return frozenset()
    return OF_A_MASK if run.is_dense else OF_A_MASK - {"mask_layers"}


def _of_models(runs: Sequence[StudyRun]) -> dict[str, dict[str, Any]]:
    """Of each of several models the defaults that none of its runs departs from another in."""
    by_model: dict[str, list[StudyRun]] = {}
    for run in runs:
        if run.settings is not None:
            by_model.setdefault(run.settings.model, []).append(run)
    found: dict[str, dict[str, Any]] = {}
    for model, own in by_model.items():
        its, apart = recipe(model), differing_options(own)
        usual = {"mask_layers": its.mask_layers, "epochs": its.epochs, "batch_size": its.batch_size}
        usual = {**usual, **its.training, **its.architecture}
        found[model] = {name: value for name, value in usual.items() if name not in apart}
    return found if len(found) > 1 else {}


@functools.cache
def _followed(model: str, lr: float, epochs: int, dataset: str) -> dict[str, float | int | None]:
    """What the options that follow from others are where they are left open."""
    settings = resolve(Config(model=model, lr=lr, epochs=epochs), dataset)
    return {name: getattr(settings, name) for name in _BY_OTHERS}
