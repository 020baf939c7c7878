"""A sweep here: runs in order, each as it would be alone, whatever interrupts or fails."""

import io
import json
import shutil
import signal
from pathlib import Path

import pytest
import tiny
from rich.console import Console

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.settings import resolve
from sparsemlp.errors import SaveError
from sparsemlp.sweeps.grid import read_grid
from sparsemlp.sweeps.sweep import load_data, tell_plan, train_sweep
from sparsemlp.sweeps.sweep_folder import SweepFolder, SweepRun

data = tiny.data
no_pictures = tiny.no_pictures
FIXED = tiny.RUN | {"epochs": 2, "mask_start_epoch": 0, "batch_size": 11}
NAMES = ["2x4-0.5-masked-seed0", "2x4-0.5-masked-seed1"]


def sweep(
    data: Path, out: Path, hp: str = "  seed: [0, 1]\n", *, retry_failed: bool = False
) -> tuple[int, str]:
    """Trains a sweep in this process; its exit code, and what it said."""
    fixed = "".join(f"  {key}: {value}\n" for key, value in FIXED.items())
    file = out.parent / f"{out.name}.yaml"
    file.write_text(f"hp:\n{hp}fixed:\n{fixed}  dataset: {data}\n")
    said = io.StringIO()
    console = Console(file=said, force_terminal=False, width=300)
    code = train_sweep(
        read_grid(file), SweepFolder(out), retry_failed=retry_failed, console=console
    )
    return code, said.getvalue()


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "made" / "here"
    out.parent.mkdir()
    code, said = sweep(data, out)
    assert code == 0
    assert said.splitlines()[-1] == f"done    2 finished, in {out}"
    return out


def test_how_data_were_found_is_told_once_before_anything_is_trained(data):
    options = resolve(Config(dataset=str(data), **tiny.RUN), str(data))
    runs = [SweepRun(name, options, "no network") for name in ("a", "b")]
    said = io.StringIO()
    load_data(runs, Console(file=said, width=300))
    first, *others = said.getvalue().splitlines()
    assert first == "NOTE: no network"
    assert len(others) == 1


def runs(out: Path) -> list[str]:
    return sorted(path.name for path in (out / "runs").iterdir())


def test_each_run_is_what_the_training_program_makes_of_its_options(
    data: Path, finished: Path, tmp_path: Path
):
    assert runs(finished) == NAMES
    alone = tmp_path / "alone"
    assert tiny.start(data, alone, **(FIXED | {"seed": 1})) == 0
    tiny.assert_same_outcome(finished / "runs" / NAMES[1], alone)
    written = json.loads((finished / "sweep.json").read_text())
    for run in written["runs"]:
        stored = json.loads((finished / "runs" / run["name"] / "config.json").read_text())
        assert run["config"] == stored


def test_a_finished_sweep_is_left_as_it_is_and_a_larger_grid_adds_to_it(
    data: Path, finished: Path, tmp_path: Path
):
    out = Path(shutil.copytree(finished, tmp_path / "copy"))
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/summary.json")}
    assert sweep(data, out)[0] == 0
    hp = "  - seed: [0, 1]\n  - seed: [0]\n    lr: [1e30]\n    min_lr: [0]\n"
    code, said = sweep(data, out, hp)
    (failed,) = set(runs(out)) - set(NAMES)
    assert code == 1
    assert f"failed  {failed}, NotFiniteError: loss or parameters became NaN" in said
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_full_disk_stops_the_sweep_and_the_same_command_goes_on(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out"

    def refuse() -> None:
        raise SaveError("make room")

    with monkeypatch.context() as patch:
        tiny.at_step(patch, 5, refuse)
        with pytest.raises(SaveError, match="make room"):
            sweep(data, out)
    assert not list(out.glob("runs/*/failure.json"))
    assert sweep(data, out)[0] == 0
    for name in NAMES:
        tiny.assert_same_outcome(out / "runs" / name, finished / "runs" / name)


@pytest.mark.thorough
def test_a_run_that_fails_is_recorded_the_others_go_on_and_it_is_tried_again_when_asked(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out"

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no such device")

    hurt: list[int] = []
    with monkeypatch.context() as patch:
        tiny.at_step(patch, 5, lambda: hurt.append(0) or (len(hurt) == 1 and refuse()))
        code, said = sweep(data, out)
    assert code == 1
    assert f"failed  {NAMES[0]}, OSError: no such device" in said
    assert "--retry-failed" in said
    record = json.loads((out / "runs" / NAMES[0] / "failure.json").read_text())
    assert set(record) == {"error", "kind", "time"}
    tiny.assert_same_outcome(out / "runs" / NAMES[1], finished / "runs" / NAMES[1])
    code, said = sweep(data, out)
    assert (code, "2 done" in said) == (1, True)
    code, _ = sweep(data, out, retry_failed=True)
    assert code == 0
    assert not (out / "runs" / NAMES[0] / "failure.json").exists()
    tiny.assert_same_outcome(out / "runs" / NAMES[0], finished / "runs" / NAMES[0])


@pytest.mark.thorough
def test_a_signal_saves_and_says_how_to_go_on_and_nothing_is_lost_or_repeated(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out"
    counted: list[int] = []

    def stop_in_the_second_run() -> None:
        counted.append(0)
        if len(counted) == 2:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        tiny.at_step(patch, 3, stop_in_the_second_run)
        patch.setattr("sys.argv", ["sweep.py", "my grid.yaml"])
        code, said = sweep(data, out)
    assert code == 128 + signal.SIGTERM
    assert "interrupted by SIGTERM" in said
    assert said.splitlines()[-1] == "  python sweep.py 'my grid.yaml'"
    first = out / "runs" / NAMES[0] / "summary.json"
    before = first.stat().st_mtime_ns
    assert tiny.last_state(out / "runs" / NAMES[1]).step == 3
    assert sweep(data, out)[0] == 0
    assert first.stat().st_mtime_ns == before
    for name in NAMES:
        tiny.assert_same_outcome(out / "runs" / name, finished / "runs" / name)


def test_a_plan_tells_what_would_be_done_and_changes_nothing(
    data: Path, finished: Path, tmp_path: Path
):
    out = Path(shutil.copytree(finished, tmp_path / "copy"))
    (out / "runs" / NAMES[1] / "summary.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    file = tmp_path / "grid.yaml"
    file.write_text((finished.parent / "here.yaml").read_text())
    said = io.StringIO()
    console = Console(file=said, force_terminal=False, width=300)
    tell_plan(read_grid(file), SweepFolder(out), retry_failed=False, console=console)
    assert said.getvalue().splitlines() == [
        f"{NAMES[0]}: finished, is left as it is",
        f"{NAMES[1]}: begun, goes on from its last checkpoint",
        f"1 finished, 1 begun; 2 epochs at most, in {out}",
    ]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    absent = SweepFolder(tmp_path / "absent")
    tell_plan(read_grid(file), absent, retry_failed=False, console=console)
    assert not absent.path.exists()


def test_a_plan_of_a_population_says_who_is_trained_alone(data: Path, tmp_path: Path):
    file = tmp_path / "grid.yaml"
    fixed = "".join(f"  {key}: {value}\n" for key, value in FIXED.items())
    file.write_text(f"hp:\n  seed: [0, 1]\nfixed:\n{fixed}  freeze_epoch: 1\n  dataset: {data}\n")
    said = io.StringIO()
    console = Console(file=said, force_terminal=False, width=300)
    folder = SweepFolder(tmp_path / "out")
    for population in ("on", "auto"):
        tell_plan(
            read_grid(file), folder, retry_failed=False, population=population, console=console
        )
    (note,) = [line for line in said.getvalue().splitlines() if line.startswith("NOTE")]
    assert note.startswith("NOTE: 2 runs trained alone: ")
    assert "cannot be trained in a population" in note
