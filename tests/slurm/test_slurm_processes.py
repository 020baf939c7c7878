"""The tasks of one SLURM step train one run together, and are preempted together."""

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cluster
import launch
import numpy as np
import pytest
import tiny

pytestmark = pytest.mark.slurm
data = tiny.data

TOLERANCE = 20 * 64 * np.finfo(np.float32).eps
"""As for several devices: roundings of 20 steps, which the loss sees in first order."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    missing = cluster.missing_programs()
    assert not missing, f"{', '.join(missing)} not found: apt install slurm-wlm munge"
    with (
        tempfile.TemporaryDirectory(prefix="slurm") as folder,
        cluster.running(Path(folder)) as environment,
    ):
        yield environment


def submit(environment: dict[str, str], folder: Path, arguments: list[str]) -> str:
    """The number of a job of two tasks, which `srun` starts."""
    python = [sys.executable, "-c", launch.PROGRAM, *arguments]
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\nsrun --ntasks=2 {shlex.join(python)}\n")
    # SLURM's own view of a machine's cores may be one: two tasks can share it.
    sbatch = ["sbatch", "--parsable", "--ntasks=2", "--overcommit", f"--output={folder}/job.out"]
    own = launch.environment() | {name: environment[name] for name in ("SLURM_CONF", "PATH")}
    done = subprocess.run(
        [*sbatch, str(script)], env=own, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split(";")[0]


def wait_for_end(environment: dict[str, str], job: str, folder: Path, seconds: float = 500) -> str:
    """What a job has printed when it is over."""
    deadline = time.monotonic() + seconds
    output = folder / "job.out"
    while job in said(environment, "squeue", "--noheader", "--format=%A"):
        assert time.monotonic() < deadline, output.read_text() if output.exists() else job
        time.sleep(0.2)
    return output.read_text()


def said(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def flags(data: Path, out: Path, **changes: Any) -> list[str]:
    values = tiny.RUN | {"dataset": data, "out": out, "checkpoint_every": 0.0}
    return tiny.flags(**(values | changes))


def test_a_job_of_two_tasks_trains_over_both_and_ends_as_one_process(slurm, data, tmp_path):
    out = tmp_path / "run"
    job = submit(slurm, tmp_path, flags(data, out))
    printed = wait_for_end(slurm, job, tmp_path)
    assert "4 x cpu in 2 processes" in printed
    assert printed.count("done    test top-1") == 1
    assert json.loads((out / "environment.json").read_text())["processes"] == 2
    alone = tmp_path / "alone"
    assert tiny.start(data, alone) == 0
    for one, other in zip(tiny.records(out), tiny.records(alone), strict=True):
        np.testing.assert_allclose(one["loss"], other["loss"], rtol=TOLERANCE)


def test_a_preempted_job_saves_once_and_goes_on(slurm, data, tmp_path):
    out = tmp_path / "run"
    job = submit(slurm, tmp_path, flags(data, out, epochs=400))
    deadline = time.monotonic() + 500
    while len(tiny.records(out)) < 3:
        assert time.monotonic() < deadline, (tmp_path / "job.out").read_text()
        time.sleep(0.1)
    said(slurm, "scancel", "--signal=TERM", job)
    printed = wait_for_end(slurm, job, tmp_path)
    assert printed.count("interrupted by SIGTERM; all is saved") == 1
    assert not (out / "summary.json").exists()
    assert tiny.last_state(out).step >= 3 * tiny.STEPS_PER_EPOCH
