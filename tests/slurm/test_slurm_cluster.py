"""Sweeps on a real SLURM end as those of the local launcher, to the bit, preempted or not."""

import json
import os
import re
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
    for count, (n_lines, number) in enumerate(((5, "TERM"), (15, "USR2")), start=1):
        wait(lambda n=n_lines: len(tiny.records(long)) >= n, out)
        said(slurm, "scancel", f"--signal={number}", job)
        wait(lambda n=count: restarts(slurm, job) == n, out)
        assert not (long / "summary.json").exists()
    wait(lambda: len(list(out.glob("runs/*/summary.json"))) == 3, out)
    wait(lambda: not said(slurm, "squeue", "--noheader").strip(), out)
    return out


def restarts(environment: dict[str, str], job: str) -> int:
    """How often SLURM has put a job back into the queue."""
    shown = said(environment, "scontrol", "--oneliner", "show", "job", job)
    return int(re.findall(r"\bRestarts=(\d+)", shown)[-1])


def test_a_preempted_sweep_ends_as_an_undisturbed_one_to_the_bit(local: Path, on_slurm: Path):
    names = sorted(path.name for path in (local / "runs").iterdir())
    assert len(names) == 3
    assert sorted(path.name for path in (on_slurm / "runs").iterdir()) == names
    assert (on_slurm / "sweep.json").read_bytes() == (local / "sweep.json").read_bytes()
    for name in names:
        tiny.assert_same_outcome(on_slurm / "runs" / name, local / "runs" / name)


def test_both_signals_stopped_the_run_at_a_safe_place_and_it_went_on(on_slurm: Path):
    (long,) = (p for p in (on_slurm / "runs").iterdir() if "epochs-60" in p.name)
    environment = json.loads((long / "environment.json").read_text())
    assert len(environment["earlier"]) == 2
    printed = "\n".join(file.read_text() for file in on_slurm.glob("slurm/*_log.out"))
    assert len(re.findall(r"^submitit INFO .* Requeued job", printed, re.MULTILINE)) == 2
    assert not list(on_slurm.rglob("failure.json"))


def test_names_with_shell_characters_do_no_harm(place: Path, on_slurm: Path):
    assert on_slurm.exists()
    assert not list(place.rglob("pwned"))
    assert not (Path.home() / "pwned").exists()
    (script,) = {path.resolve() for path in on_slurm.glob("slurm/*_submission.sh")}
    assert re.search(r"--job-name=[A-Za-z0-9_.+-]+$", script.read_text(), re.MULTILINE)


def test_a_finished_sweep_is_not_submitted_again(
    place: Path, grid: Path, slurm: dict[str, str], on_slurm: Path
):
    assert "0 jobs submitted for 0 runs" in sweep(place, slurm, grid, f"--out={on_slurm}")


def test_a_cancelled_run_is_saved_not_requeued_and_submitted_anew(
    place: Path, grid: Path, slurm: dict[str, str], local: Path
):
    out = place / "cancelled"
    sweep(place, slurm, grid, f"--out={out}")
    jobs = json.loads((out / "slurm" / "submitted.json").read_text())
    (job,) = (job for job, names in jobs.items() if "60" in names[0])
    long = out / "runs" / jobs[job][0]
    wait(lambda: len(tiny.records(long)) >= 5, out)
    said(slurm, "scancel", job)
    wait(lambda: not said(slurm, "squeue", "--noheader").strip(), out)
    assert restarts(slurm, job) == 0
    assert not (long / "summary.json").exists()
    assert "1 jobs submitted for 1 runs" in sweep(place, slurm, grid, f"--out={out}")
    wait(lambda: (long / "summary.json").exists(), out)
    tiny.assert_same_outcome(long, local / "runs" / long.name)
