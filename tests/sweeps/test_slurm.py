"""What is handed to sbatch, with programs that only note what they were given in SLURM's place."""

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from sparsemlp.errors import InputError
from sparsemlp.sweeps.grid import Grid, read_grid
from sparsemlp.sweeps.slurm import submit_sweep, tell_scripts
from sparsemlp.sweeps.sweep_folder import SweepFolder
from sparsemlp.sweeps.sweep_runs import settle

AWKWARD = "$(touch pwned) `touch pwned`; 'a' \"b\" & # <c>"
"""What a shell would act on."""


def grid(place: Path, more: str = "") -> Grid:
    file = place / "grid.yaml"
    file.write_text(f"hp:\n  seed: [0, 1, 2]\nfixed:\n  dataset: digits\n{more}")
    return read_grid(file)


AWKWARD_SECTIONS = f"""
meta:
  prefix: {json.dumps(AWKWARD)}
sbatch:
  comment: {json.dumps(AWKWARD)}
  partition: gpu
  cpus-per-task: 2
  time: 1-0
"""


def scripts(grid: Grid, folder: SweepFolder) -> str:
    said = io.StringIO()
    console = Console(file=said, force_terminal=False, width=80)
    sweep = settle(grid, folder, look=True)
    tell_scripts(grid, folder, sweep, retry_failed=False, console=console)
    return said.getvalue()


def test_the_script_asks_for_what_the_file_says(tmp_path):
    lines = scripts(grid(tmp_path, AWKWARD_SECTIONS), SweepFolder(tmp_path / "out")).splitlines()
    for option in ("partition=gpu", "time=1440", "cpus-per-task=2", "requeue", "signal=USR2@120"):
        assert f"#SBATCH --{option}" in lines
    assert any(line.startswith("#SBATCH --array=0-2%") for line in lines)
    assert not (tmp_path / "out").exists()


def test_a_script_with_shell_characters_everywhere_does_no_harm(tmp_path):
    """It is run by a shell; `srun` only notes its words."""
    place = tmp_path / AWKWARD
    place.mkdir()
    script = scripts(grid(place, AWKWARD_SECTIONS), SweepFolder(place / "out"))
    assert f"--comment={shlex.quote(AWKWARD)}" in script
    noted = tmp_path / "noted"
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "srun").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {noted}\n')
    (programs / "srun").chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    subprocess.run(["bash", "-c", script], cwd=place, env=environment, check=True)
    words = noted.read_text().splitlines()
    assert words[-6:] == [
        "--cpus-per-task=2",
        sys.executable,
        "-u",
        "-m",
        "submitit.core._submit",
        str(place / "out" / "slurm"),
    ]
    assert not list(tmp_path.rglob("pwned"))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that answer as SLURM does; the folder has a `queue`, and `noted` submissions."""
    place = tmp_path / "slurm programs"
    place.mkdir()
    quoted = shlex.quote(str(place))
    programs = {
        "sbatch": f"[ -e {quoted}/refuse ] && {{ echo 'Invalid partition' >&2; exit 1; }}\n"
        f'echo "$1" >> {quoted}/noted; echo Submitted batch job $(wc -l < {quoted}/noted)',
        # Tasks of an array that wait are one line, unless each is asked for.
        "squeue": f'case "$*" in *--array*) cat {quoted}/queue;; *) echo "1_[0-2]";; esac',
        "srun": "",
    }
    for name, body in programs.items():
        (place / name).write_text(f"#!/bin/sh\n{body}\n")
        (place / name).chmod(0o755)
    (place / "queue").write_text("")
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    return place


def submit(grid: Grid, folder: SweepFolder) -> str:
    said = io.StringIO()
    console = Console(file=said, force_terminal=False, width=300)
    assert submit_sweep(grid, folder, retry_failed=False, console=console) == 0
    return said.getvalue()


def test_what_is_finished_or_in_the_queue_is_not_submitted_again(tmp_path, slurm):
    folder = SweepFolder(tmp_path / "out")
    assert "3 jobs submitted for 3 runs" in submit(grid(tmp_path), folder)
    submitted = json.loads((folder.slurm / "submitted.json").read_text())
    assert submitted == {f"1_{n}": [f"dense-seed{n}"] for n in range(3)}
    folder.run("dense-seed0").path.mkdir(parents=True)
    folder.run("dense-seed0").summary.write_text('{"test_top1": 0.5}')
    (slurm / "queue").write_text("1_1\n77\n")
    planned = scripts(grid(tmp_path), folder)
    assert planned.startswith("1 runs are in the queue already\n")
    assert "--array" not in planned
    said = submit(grid(tmp_path), folder)
    assert "1 jobs submitted for 1 runs, 1 runs are in the queue already" in said
    assert len((slurm / "noted").read_text().splitlines()) == 2
    submitted = json.loads((folder.slurm / "submitted.json").read_text())
    assert submitted["2"] == ["dense-seed2"]
    assert len(submitted) == 4


def test_a_plan_that_cannot_ask_slurm_says_so_and_lists_every_run(tmp_path, slurm):
    folder = SweepFolder(tmp_path / "out")
    submit(grid(tmp_path), folder)
    (slurm / "squeue").unlink()
    planned = scripts(grid(tmp_path), folder)
    assert planned.startswith("NOTE: runs that are in the queue are not left out: ")
    assert "--array=0-2" in planned


def test_long_arrays_are_cut_and_each_run_is_submitted_once(tmp_path, slurm, monkeypatch):
    monkeypatch.setattr("sparsemlp.sweeps.slurm._LONGEST_ARRAY", 2)
    folder = SweepFolder(tmp_path / "out")
    dry = scripts(grid(tmp_path), folder)
    assert dry.count("#!/bin/bash") == 2
    assert dry.count("#SBATCH --array=0-1%") == dry.count("#SBATCH --array") == 1
    assert "3 jobs submitted for 3 runs" in submit(grid(tmp_path), folder)
    assert len((slurm / "noted").read_text().splitlines()) == 2
    submitted = json.loads((folder.slurm / "submitted.json").read_text())
    assert submitted == {"1_0": ["dense-seed0"], "1_1": ["dense-seed1"], "2": ["dense-seed2"]}


def test_a_job_that_is_preempted_again_and_again_is_queued_again(tmp_path, slurm):
    utils = pytest.importorskip("submitit.core.utils")
    folder = SweepFolder(tmp_path / "out")
    submit(grid(tmp_path), folder)
    submissions = sorted(folder.slurm.glob("*_submitted.pkl"))
    assert len(submissions) == 3
    for path in submissions:
        assert utils.DelayedSubmission.load(path)._timeout_countdown >= 100


@pytest.mark.parametrize(
    ("asked", "together"),
    [
        ('gres: "gpu:4"', True),
        ("gpus-per-task: 1", True),
        ('gres: "lscratch:10,gpu:h100:2"', True),
        ('gres: "lscratch:10"', False),
        ('gres: "gpu:0"', False),
        ("gpus: 0", False),
        ("gpu-bind: none", False),
    ],
)
def test_runs_are_trained_together_where_jobs_ask_for_gpus(tmp_path, asked, together):
    script = scripts(grid(tmp_path, f"sbatch:\n  {asked}\n"), SweepFolder(tmp_path / "out"))
    assert ("--array" in script) is not together


def test_devices_of_nodes_are_not_those_of_this_machine(tmp_path):
    """Only the batch that they share is known here."""
    file = tmp_path / "grid.yaml"
    text = "hp:\n  seed: [0, 1]\nfixed:\n  dataset: digits\n  devices: {}\n"
    file.write_text(text.format(1000))
    with pytest.raises(InputError, match=r"grid.yaml:5: devices: .*JAX sees"):
        read_grid(file)
    with pytest.raises(InputError, match=r"grid.yaml:5: devices: 32 images .* 1000 devices"):
        read_grid(file, "slurm")
    file.write_text(text.format(16))
    assert [run.config.devices for run in read_grid(file, "slurm").runs] == [16, 16]


def test_a_refusal_of_sbatch_is_one_line(tmp_path, slurm):
    (slurm / "refuse").touch()
    with pytest.raises(InputError, match=r"sbatch refused the jobs: .*Invalid partition"):
        submit(grid(tmp_path), SweepFolder(tmp_path / "out"))


def test_without_slurm_the_way_out_is_told_and_nothing_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"no SLURM on this machine .*--launcher=local"):
        submit(grid(tmp_path), SweepFolder(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_without_submitit_the_command_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(InputError, match="pip install submitit"):
        submit(grid(tmp_path), SweepFolder(tmp_path / "out"))


@pytest.mark.parametrize("name", ["100%", "a\\b", "a\nb"])
def test_a_folder_whose_name_slurm_would_misread_is_refused(tmp_path, slurm, name):
    with pytest.raises(InputError, match="SLURM cannot write to"):
        submit(grid(tmp_path), SweepFolder(tmp_path / name))
