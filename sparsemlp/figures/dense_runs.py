"""The dense runs that masked ones are measured against."""

from collections.abc import Iterable

from sparsemlp.seeds import Seeds, by_seed
from sparsemlp.study import Study
from sparsemlp.study_run import StudyRun

_SHARED = ("model", "epochs", "batch_size", "dataset", "dim", "lr", "optimizer")
"""What a dense run has in common with a masked one that it is the measure of."""


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
    return tuple(getattr(run.settings, name) for name in _SHARED)
