"""Which runs of a sweep are a job: trained in one go, by whichever launcher."""

from collections import Counter
from collections.abc import Sequence

from sparsemlp.populations import grouping
from sparsemlp.sweeps.sweep_folder import SweepRun
from sparsemlp.sweeps.sweep_runs import resolved


def form_jobs(runs: Sequence[SweepRun], *, together: bool = False) -> list[list[SweepRun]]:
    """Divides runs into jobs, in the order of their first runs.

    Args:
      runs: the runs.
      together: whether runs that can be trained as a population are one job.
    """
    if not together:
        return [[run] for run in runs]
    groups = grouping.group_runs([resolved(run) for run in runs])
    return [[runs[index] for index in group] for group in groups]


def reasons_apart(runs: Sequence[SweepRun]) -> dict[str, int]:
    """Why runs cannot be trained in a population, and how many of them each reason holds for."""
    found = [grouping.reason_against(resolved(run)) for run in runs]
    return dict(Counter(reason for reason in found if reason is not None))


def name_of(job: Sequence[SweepRun]) -> str:
    """What to call the runs of a job."""
    if len(job) == 1:
        return job[0].name
    return f"{len(job)} runs together, {job[0].name} to {job[-1].name}"


def epochs_of(job: Sequence[SweepRun]) -> int:
    """How many epochs a job goes through; the runs of a population have one number."""
    return max(resolved(run).epochs for run in job)
