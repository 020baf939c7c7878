"""The dense runs that masked ones are measured against."""

import dataclasses
from collections.abc import Iterable

from sparsemlp.config import CHANGEABLE
from sparsemlp.mask_options import NEED_A_MASK
from sparsemlp.seeds import Seeds, by_seed
from sparsemlp.settings import model_and_plan
from sparsemlp.study import Study
from sparsemlp.study_run import StudyRun

_OWN = frozenset(
    {
        *("block", "ratio", "backward", "config", "depth", "mask_layers", "mask_start_epoch"),
        *("activation", "gradient", "gradient_method", "score", "ramp_epochs", "seed"),
        *("engine", "image_size", *NEED_A_MASK, *CHANGEABLE),
    }
)
"""What a dense run need not have in common with a masked one that it is the measure of."""


def dense_runs(study: Study, runs: Iterable[StudyRun]) -> Seeds | None:
    """Finished dense runs in the setting of the given ones, None if there are none."""
    settings = {_key(run) for run in runs}
    for group in by_seed(study.finished):
        if group.first.is_dense and _key(group.first) in settings:
            return group
    return None


def dense_top1(study: Study, runs: Iterable[StudyRun]) -> tuple[float, float] | None:
    """Mean and spread of the dense model's test top-1, None if it was not trained."""
    dense = dense_runs(study, runs)
    return None if dense is None else dense.top1()


def _key(run: StudyRun) -> tuple[object, ...]:
    if run.settings is None:
        return (run.name,)
    names = (field.name for field in dataclasses.fields(run.settings) if field.name not in _OWN)
    depth, _ = model_and_plan(run.settings)
    return (depth, *(repr(getattr(run.settings, name)) for name in names))
