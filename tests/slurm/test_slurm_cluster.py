"""Sweeps on a real SLURM end as those of the local launcher, to the bit, preempted or not."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cluster
import pytest
import tiny

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "experiments" / "sweep.py"
AWKWARD = "$(touch pwned) `touch pwned`; 'a' \"b\" & # <c>"
"""What a shell would act on."""


def grid_text(data: Path) -> str:
    """Two short runs, and a long one to be disturbed."""
    options = {key: value for key, value in tiny.RUN.items() if key not in ("block", "epochs")}
    fixed = "".join(f"  {key}: {value}\n" for key, value in options.items() if key != "ratio")
    return f"""
hp:
  - block: [2x4]
    ratio: [0, 0.5]
    epochs: [3]
  - block: [2x4]
    ratio: [0.5]
    epochs: [60]
fixed:
{fixed}  dataset: {json.dumps(str(data))}
  checkpoint_every: 0
meta:
  run: slurm
  prefix: {json.dumps(AWKWARD)}
sbatch:
  partition: test
  cpus-per-task: 1
  time: 0:20:00
  comment: {json.dumps(AWKWARD)}
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    missing = cluster.missing_programs()
    assert not missing, f"{', '.join(missing)} not found: apt install slurm-wlm munge"
    with (
        tempfile.TemporaryDirectory(prefix="slurm") as folder,
        cluster.running(Path(folder)) as environment,
    ):
        yield environment


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the sweeps lie: a folder whose name a shell would act on."""
    folder = tmp_path_factory.mktemp("sweeps") / AWKWARD
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def grid(place: Path) -> Path:
    file = place / "tiny grid.yaml"
    file.write_text(grid_text(tiny.write_npz(place / "tiny.npz")))
    return file


def sweep(place: Path, environment: dict[str, str], *arguments: object) -> str:
    """What the program prints; it must end well."""
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(place / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        env=environment | settings,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def said(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def wait(condition: Callable[[], object], out: Path, seconds: float = 500) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            logs = "\n".join(file.read_text() for file in out.glob("slurm/*.out"))
            raise TimeoutError(f"{[str(p) for p in out.rglob('*.json')]}\n{logs}")
        time.sleep(0.1)


@pytest.fixture(scope="module")
def local(place: Path, grid: Path) -> Path:
    """The same sweep by the local launcher, never disturbed."""
    out = place / "local"
    sweep(place, dict(os.environ), grid, "--launcher=local", f"--out={out}")
    return out


@pytest.fixture(scope="module")
def on_slurm(place: Path, grid: Path, slurm: dict[str, str]) -> Path:
    """The sweep by SLURM, whose long run is preempted by SIGTERM and then by SIGUSR2."""
    out = place / "slurm"
    printed = sweep(place, slurm, grid, f"--out={out}")
    assert "3 jobs submitted for 3 runs" in printed
    again = sweep(place, slurm, grid, f"--out={out}")
    assert "0 jobs submitted for 0 runs" in again or "in the queue already" in again

    jobs = json.loads((out / "slurm" / "submitted.json").read_text())
    (job,) = (job for job, names in jobs.items() if "60" in names[0])
    long = out / "runs" / jobs[job][0]
    for n_lines, number in ((5, "TERM"), (15, "USR2")):
        wait(lambda n=n_lines: len(tiny.records(long)) >= n, out)
        said(slurm, "scancel", f"--signal={number}", job)
        wait(lambda: "Restarts=" in _of(slurm, job), out)
        before = restarts(slurm, job)
        wait(lambda: restarts(slurm, job) > (0 if number == "TERM" else 1) - 1, out)
        assert before >= 0
    wait(lambda: len(list(out.glob("runs/*/summary.json"))) == 3, out)
    wait(lambda: not said(slurm, "squeue", "--noheader").strip(), out)
    return out


def _of(environment: dict[str, str], job: str) -> str:
    return said(environment, "scontrol", "--oneliner", "show", "job", job)


def restarts(environment: dict[str, str], job: str) -> int:
    """How often SLURM has started a job again."""
    words = dict(word.split("=", 1) for word in _of(environment, job).split() if "=" in word)
    return int(words["Restarts"])
