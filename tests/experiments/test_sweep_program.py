"""The program as a process: killed at any moment, it goes on and loses and repeats nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sweep as program
import tiny

PROGRAM = Path(program.__file__)
OPTIONS = tiny.RUN | {
    "epochs": 12,
    "mask_start_epoch": 0,
    "batch_size": 22,
    "checkpoint_every": 0.0,
}
NAMES = ["2x4-0.5-masked-seed0", "2x4-0.5-masked-seed1"]


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    data = tiny.write_npz(tmp_path / "tiny.npz")
    fixed = "".join(f"  {key}: {value}\n" for key, value in OPTIONS.items())
    file = tmp_path / "grid.yaml"
    file.write_text(f"hp:\n  seed: [0, 1]\nfixed:\n{fixed}  dataset: {data}\n")
    return file


def summaries(out: Path) -> dict[str, int]:
    return {p.parent.name: p.stat().st_mtime_ns for p in out.glob("runs/*/summary.json")}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_sweep_killed_in_each_run_ends_as_runs_never_disturbed(
    grid: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("sparsemlp.runs.recorder.draw", lambda *_: None)
    out = tmp_path / "out"
    env = os.environ | {
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "PYTHONPATH": str(PROGRAM.parents[1]),
    }
    before: dict[str, int] = {}
    for name in NAMES:
        with subprocess.Popen(
            [sys.executable, PROGRAM, grid, f"--out={out}"], env=env, stdout=subprocess.DEVNULL
        ) as process:
            try:
                deadline = time.monotonic() + 300
                while process.poll() is None and time.monotonic() < deadline:
                    if len(tiny.records(out / "runs" / name)) >= 3:
                        break
                    time.sleep(0.01)
            finally:
                process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert 3 <= len(tiny.records(out / "runs" / name)) < 12
        assert before.items() <= summaries(out).items()
        before = summaries(out)
    assert set(before) == {NAMES[0]}
    assert program.main([str(grid), f"--out={out}"]) == 0
    assert before.items() <= summaries(out).items()
    rare = {"checkpoint_every": 30.0}
    for seed, name in enumerate(NAMES):
        alone = tmp_path / name
        assert tiny.start(tmp_path / "tiny.npz", alone, **(OPTIONS | rare | {"seed": seed})) == 0
        tiny.assert_same_outcome(out / "runs" / name, alone)


def test_two_sweeps_in_one_folder_are_refused(grid, tmp_path, capsys):
    folder = program.SweepFolder(tmp_path / "out")
    folder.create()
    with folder.locked():
        assert program.main([str(grid), f"--out={folder.path}"]) == 2
    assert capsys.readouterr().err.startswith("error: another sweep is running in ")


def test_a_bad_file_is_told_and_nothing_is_made(tmp_path, capsys):
    file = tmp_path / "grid.yaml"
    file.write_text("hp:\n  blok: [1]\nfixed:\n  dataset: digits\n")
    assert program.main([str(file), f"--out={tmp_path / 'out'}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file}:2: unknown key hp.blok: did you mean block?")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_lists_the_runs_and_the_scripts_and_makes_nothing(
    grid, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert program.main([str(grid), "--dry-run", "--launcher=slurm"]) == 0
    said = capsys.readouterr().out
    assert [f"{name}: new" in said for name in NAMES] == [True, True]
    assert "#SBATCH --array=0-1%2" in said
    assert f"{tmp_path}/sweeps/grid/slurm" in said
    assert not (tmp_path / "sweeps").exists()
