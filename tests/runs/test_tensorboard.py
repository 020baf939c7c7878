"""Events of a run are scalars under their step, and those of a part that is redone are purged."""

import errno
import itertools
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from sparsemlp.errors import InputError, SaveError
from sparsemlp.runs.tensorboard import TensorBoard

RECORD = {
    "loss": 2.25,
    "train_top1": 0.125,
    "train_top5": 0.5,
    "test_top1": 0.25,
    "test_top5": 0.75,
    "density": 0.2,
    "changed_blocks": 0.0625,
    "dropped_norm": 3.5,
    "learning_rate": 0.01,
    "images_per_second": 1000.0,
    "dataset": "tiny.npz",
}


def events(folder: Path) -> list[Any]:
    """All events of a folder: length, its checksum, the message, its checksum, and so on."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = []
    for file in sorted(folder.glob("events.out.tfevents.*")):
        data = file.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            found.append(event_pb2.Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    return {
        (value.tag, event.step): value.simple_value
        for event in events(folder)
        for value in event.summary.value
        if value.HasField("simple_value")
    }


def write(folder: Path, steps: list[int], *, done: int = 0) -> None:
    pytest.importorskip("tensorboardX")
    board = TensorBoard(folder, done)
    for step in steps:
        board.write(RECORD | {"step": step, "loss": float(step)})
    board.close()


def test_every_number_of_a_record_is_read_back_under_its_step(tmp_path):
    write(tmp_path, [10, 20])
    found = scalars(tmp_path)
    losses = {key: value for key, value in found.items() if key[0] == "train/loss"}
    assert losses == {("train/loss", 10): 10.0, ("train/loss", 20): 20.0}
    numbers = sorted(value for (_, step), value in found.items() if step == 20)
    others = [value for key, value in RECORD.items() if key not in ("loss", "dataset")]
    assert numbers == pytest.approx(sorted([20.0, *others]), rel=1e-6)


def test_the_events_name_the_data_set(tmp_path):
    write(tmp_path, [10])
    texts = [t for e in events(tmp_path) for v in e.summary.value for t in v.tensor.string_val]
    assert texts == [b"tiny.npz"]


def test_a_resumed_run_purges_what_it_does_again(tmp_path):
    """Readers drop events of the start's step and later that stand before it in time."""
    write(tmp_path, [10, 20, 30])
    write(tmp_path, [30, 40], done=20)
    starts = [e.step for e in events(tmp_path) if e.session_log.status == 1]
    assert starts == [21]


def test_a_run_that_begins_anew_purges_all_that_it_told(tmp_path):
    """One that was killed before it had saved any step but the first."""
    write(tmp_path, [10, 20])
    write(tmp_path, [10], done=0)
    starts = [e.step for e in events(tmp_path) if e.session_log.status == 1]
    assert starts == [1]


def test_numbers_that_are_not_finite_are_written(tmp_path):
    board = TensorBoard(tmp_path, 0)
    board.write(RECORD | {"step": 1, "loss": float("nan"), "dropped_norm": float("inf")})
    board.close()
    found = scalars(tmp_path)
    assert found["train/loss", 1] != found["train/loss", 1]
    assert float("inf") in found.values()


def test_a_missing_package_is_told_with_its_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(InputError, match="pip install tensorboardX"):
        TensorBoard(tmp_path / "events", 0)
    assert not (tmp_path / "events").exists()


def test_events_are_on_the_disk_after_every_record(tmp_path):
    """A run that is killed keeps the epochs it has told."""
    board = TensorBoard(tmp_path, 0)
    for step in (1, 2, 3):
        board.write(RECORD | {"step": step})
        steps = {s for _, s in scalars(tmp_path)}
        assert steps == set(itertools.takewhile(lambda s, step=step: s <= step, (1, 2, 3)))
    board.close()


def test_a_full_disk_is_told_in_a_line(tmp_path, monkeypatch):
    record_writer = pytest.importorskip("tensorboardX.record_writer").RecordWriter
    board = TensorBoard(tmp_path, 0)

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(record_writer, "write", refuse)
    with pytest.raises(SaveError, match=f"cannot write to {tmp_path}: No space left on device"):
        board.write(RECORD | {"step": 1})
    monkeypatch.undo()
    board.close()


def test_a_folder_that_cannot_be_is_told_in_a_line(tmp_path):
    pytest.importorskip("tensorboardX")
    (tmp_path / "events").write_text("")
    with pytest.raises(SaveError, match="events: File exists; see to that and continue"):
        TensorBoard(tmp_path / "events", 10)
