"""No interruption, damage or full disk changes the numbers of a run."""

import dataclasses
import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import finished_run
import jax
import numpy as np
import pytest
import tiny
from finished_run import EVERY_STEP

from sparsemlp import device
from sparsemlp.errors import SaveError
from sparsemlp.runs.resume import restore_run

data = tiny.ragged_data
no_pictures = tiny.no_pictures
finished = finished_run.finished


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("step", [11, 3, 6])
def test_a_signal_stops_at_the_next_step_and_a_resumed_run_ends_the_same(
    finished: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: int,
):
    """Before the partial batch of a masked epoch, in a dense one, and after that."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        tiny.at_step(patch, step, lambda: signal.raise_signal(signal.SIGTERM))
        assert tiny.start(data, out) == 143
    said = capsys.readouterr().out
    assert "interrupted by SIGTERM" in said
    assert f"--resume {out}" in said.splitlines()[-1]
    assert not (out / "summary.json").exists()
    assert len(tiny.records(out)) == step // 6
    assert tiny.last_state(out).step == step
    with np.load(out / "mask_activity.npz") as file:
        assert int(file["masked_steps"]) == max(0, step - 6)
    monkeypatch.setattr("sparsemlp.runs.recorder.restore_run", restore_with_1000_seconds)
    assert tiny.resume(out) == 0
    tiny.assert_same_outcome(out, finished)
    # What the epoch had taken before belongs to it.
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["seconds"] > 1000 for line in lines] == [i == step // 6 for i in range(3)]
    (earlier,) = json.loads((out / "environment.json").read_text())["earlier"]
    assert earlier["dataset"] == "tiny.npz"


def restore_with_1000_seconds(*args: Any, **kwargs: Any) -> Any:
    """A checkpoint as it is, but for the time that its epoch has taken."""
    restored = restore_run(*args, **kwargs)
    assert restored is not None
    return dataclasses.replace(restored, metadata=restored.metadata | {"seconds": 1000.0})


@pytest.mark.slow
def test_a_run_with_an_average_and_parts_resumes_bit_for_bit(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Three parts of 8 images, two of the 4 of the last batch; interrupted in the epoch."""
    options: dict[str, Any] = {"ema": 0.9, "accumulate": 3, "drop_path": 0.3}
    options |= {"epochs": 1, "mask_start_epoch": 0}
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert tiny.start(data, whole, "--remat", **options) == 0
    with monkeypatch.context() as patch:
        tiny.at_step(patch, 3, lambda: signal.raise_signal(signal.SIGTERM))
        assert tiny.start(data, out, "--remat", **options) == 143
    assert tiny.resume(out) == 0
    tiny.assert_same_outcome(out, whole)
    state = tiny.last_state(out).state
    assert norm_of(state.average["params"]) != norm_of(state.params)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"ratio_schedule": "adaptive", "hold_out": 0.25, "hysteresis": 0.1, "score_decay": 0.5},
        {"budget": "global", "ratio_schedule": "cubic", "ramp_epochs": 2, "freeze_epoch": 2},
    ],
    ids=["adaptive", "global, frozen"],
)
def test_masks_that_move_resume_bit_for_bit(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
):
    """Interrupted in the first masked epoch and in the one after it."""
    options = {"mask_start_epoch": 1, "moments": "reset", **options}
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert tiny.start(data, whole, **options) == 0
    n_steps = tiny.last_state(whole).step // 3
    with monkeypatch.context() as patch:
        tiny.at_step(patch, n_steps + 1, lambda: signal.raise_signal(signal.SIGTERM))
        assert tiny.start(data, out, **options) == 143
    with monkeypatch.context() as patch:
        tiny.at_step(patch, 2 * n_steps + 1, lambda: signal.raise_signal(signal.SIGTERM))
        assert tiny.resume(out) == 143
    assert tiny.resume(out) == 0
    tiny.assert_same_outcome(out, whole)


def norm_of(tree: Any) -> float:
    return float(sum(np.square(np.asarray(leaf)).sum() for leaf in jax.tree.leaves(tree)))


def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def damage(checkpoint: Path) -> None:
    """Flips bits all over the largest file, which holds the arrays."""
    file = max((checkpoint / "state").rglob("*"), key=lambda f: f.is_file() and f.stat().st_size)
    content = bytearray(file.read_bytes())
    for place in range(0, len(content), 64):
        content[place] ^= 1
    file.write_bytes(content)


def test_resuming_a_finished_run_changes_nothing(finished: Path, tmp_path: Path):
    out = copy(finished, tmp_path)
    assert tiny.resume(out) == 0
    tiny.assert_same_outcome(out, finished)
    for name in ("metrics.jsonl", "summary.json"):
        assert (out / name).read_bytes() == (finished / name).read_bytes()


def test_a_damaged_checkpoint_is_skipped_with_a_warning_and_the_run_ends_the_same(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = copy(finished, tmp_path)
    damage(out / "checkpoints" / "18")
    assert tiny.resume(out) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: damaged checkpoint {out}/checkpoints/18 skipped: ")
    tiny.assert_same_outcome(out, finished)


def test_without_an_intact_checkpoint_there_is_nothing_to_resume(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = copy(finished, tmp_path)
    for checkpoint in (out / "checkpoints").iterdir():
        damage(checkpoint)
    assert tiny.resume(out) == 2
    *skipped, last = capsys.readouterr().err.splitlines()
    assert all(line.startswith("warning: damaged checkpoint ") for line in skipped)
    assert last.startswith(f"error: no intact checkpoint in {out}")
    assert (out / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()


def test_other_data_under_the_same_name_is_refused(
    finished: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = copy(finished, tmp_path)
    content = data.read_bytes()
    try:
        tiny.write_npz(data, **tiny.arrays(seed=1))
        assert tiny.resume(out) == 2
    finally:
        data.write_bytes(content)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"error: the data are not those that .* was started on", line)


def test_a_lost_record_is_told(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = copy(finished, tmp_path)
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text(lines[0] + lines[2])
    assert tiny.resume(out) == 2
    assert "lacks records of the 3 epochs" in capsys.readouterr().err


def test_options_that_do_not_change_the_numbers_may_be_changed(finished: Path, tmp_path: Path):
    out = copy(finished, tmp_path)
    assert tiny.resume(out, "--checkpoint-every=7", "--allow-nan", f"--data-dir={tmp_path}") == 0
    assert json.loads((out / "config.json").read_text())["checkpoint_every"] == 7
    assert tiny.records(out) == tiny.records(finished)


@pytest.mark.thorough
@pytest.mark.parametrize(("step", "refused"), [(15, "checkpoint"), (12, "record")])
def test_a_full_disk_is_one_line_and_nothing_saved_is_lost(
    finished: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: int,
    refused: str,
):
    """A limit on the size of files fails in the writes where a full disk does."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))

    out = tmp_path / "out"
    try:
        with monkeypatch.context() as patch:
            tiny.at_step(patch, step, fill)
            assert tiny.start(data, out, **EVERY_STEP) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(rf"error: cannot (save|add).* {refused} .*{out}.*: File too large; ", line)
    assert tiny.last_state(out).step == step - 1
    assert tiny.resume(out) == 0
    tiny.assert_same_outcome(out, finished)


def test_a_folder_that_refuses_writes_keeps_why_the_run_failed(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    out = copy(finished, tmp_path)
    (out / "failure.json").write_text('{"error": "NaN", "kind": "NotFiniteError", "time": ""}')

    def refuse(path: Path, *_: object) -> None:
        raise SaveError(f"cannot write {path}: Permission denied; make it writable and continue")

    monkeypatch.setattr("sparsemlp.runs.recorder.write_whole", refuse)
    assert tiny.resume(out) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: cannot write {out / 'config.json'}: Permission denied")
    assert (out / "failure.json").exists()


def test_a_device_that_answers_no_more_ends_the_run_with_a_line(
    finished, data, tmp_path, monkeypatch, capsys
):
    def fail() -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(device, "device_answers", lambda: False)
    tiny.at_step(monkeypatch, 1, fail)
    assert tiny.start(data, tmp_path / "run") == 4
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("stopped: the device answers no more after RuntimeError: an illegal")
    assert last.endswith("; the run goes on from its last checkpoint with --resume")
    monkeypatch.undo()
    assert tiny.resume(tmp_path / "run") == 0
    tiny.assert_same_outcome(tmp_path / "run", finished)
