"""Which runs of a sweep are trained in one go."""

import dataclasses

import pytest

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.settings import resolve
from sparsemlp.sweeps.job_forming import epochs_of, form_jobs, name_of, reasons_apart
from sparsemlp.sweeps.sweep_folder import SweepRun


@pytest.fixture
def run() -> SweepRun:
    config = Config(dataset="digits", block="4x4", ratio=0.5, epochs=1)
    return SweepRun("tiny", resolve(config, "digits"))


def members(run: SweepRun, *ratios: float) -> list[SweepRun]:
    return [
        SweepRun(f"r{ratio:g}", resolve(dataclasses.replace(run.config, ratio=ratio), "digits"))
        for ratio in ratios
    ]


def test_every_run_is_in_one_job(run):
    jobs = form_jobs([run] * 3)
    assert [each for job in jobs for each in job] == [run] * 3


def test_runs_that_differ_in_ratio_are_one_job_if_they_are_trained_together(run):
    runs = members(run, 0.25, 0.5, 0.75)
    other = SweepRun("other", resolve(Config(dataset=run.config.dataset), run.config.dataset))
    runs.insert(1, other)
    assert form_jobs(runs, together=False) == [[each] for each in runs]
    jobs = form_jobs(runs, together=True)
    assert jobs == [[runs[0], *runs[2:]], [other]]
    assert name_of(jobs[0]) == "3 runs together, r0.25 to r0.75"
    assert epochs_of(jobs[0]) == 1


def test_runs_that_cannot_be_a_population_have_a_reason(run):
    alone = SweepRun("x", dataclasses.replace(run.config, engine="cpu"))
    ((reason, count),) = reasons_apart([run, alone]).items()
    assert count == 1
    assert "--engine=cpu cannot train a population" in reason
