"""The dense runs that masked ones are measured against."""

import dataclasses
from collections.abc import Iterable, Sequence

from sparsemlp.configuration.config import CHANGEABLE
from sparsemlp.configuration.mask_options import NEED_A_MASK, OF_A_MASK
from sparsemlp.configuration.settings import REPLACED, depth_and_plan
from sparsemlp.studies.labels import Labels
from sparsemlp.studies.seeds import Seeds, by_seed
from sparsemlp.studies.study import Study
from sparsemlp.studies.study_run import StudyRun

_OWN = frozenset(
    {
        *("config", "ramp_epochs", "seed", "engine"),
        *(*REPLACED, *OF_A_MASK, *NEED_A_MASK, *CHANGEABLE),
    }
)
"""What a dense run need not have in common with a masked one that it is the measure of."""


def dense_runs(study: Study, runs: Iterable[StudyRun]) -> Seeds | None:
    """Finished dense runs in the setting that all given runs share, None if there are none."""
    settings = {_key(run) for run in runs}
    found = _in_settings(study, settings)
    return found[0] if len(settings) == len(found) == 1 else None


def named_dense_runs(study: Study, runs: Sequence[StudyRun]) -> dict[str, Seeds]:
    """Finished dense runs in any setting of the given runs, by a name that tells which one."""
    settings = {_key(run) for run in runs}
    found = _in_settings(study, settings)
    labels = Labels([*runs, *(group.first for group in found)])
    told = {} if len(settings) == 1 else {g: labels.other_options(g.first) for g in found}
    return {
        "dense model" + (f", {told[group]}" if told.get(group) else ""): group for group in found
    }


def dense_top1(study: Study, runs: Iterable[StudyRun]) -> tuple[float, float] | None:
    """Mean and spread of the test top-1 of `dense_runs`, None if there are none."""
    dense = dense_runs(study, runs)
    return None if dense is None else dense.top1()


def _in_settings(study: Study, settings: set[tuple[object, ...]]) -> list[Seeds]:
    groups = by_seed(run for run in study.finished if run.is_dense)
    one_each: dict[tuple[object, ...], Seeds] = {}
    for group in groups:
        known = one_each.setdefault(_key(group.first), group)
        if len(group.runs) > len(known.runs):
            one_each[_key(group.first)] = group
    return [group for key, group in one_each.items() if key in settings]


def _key(run: StudyRun) -> tuple[object, ...]:
    if run.settings is None:
        return (run.name,)
    names = (field.name for field in dataclasses.fields(run.settings) if field.name not in _OWN)
    depth, _ = depth_and_plan(run.settings)
    return (depth, run.dataset, *(repr(getattr(run.settings, name)) for name in names))
