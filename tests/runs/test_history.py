"""The records of a run survive kills, full disks and resumes."""

import errno
import json
import math
import os
from pathlib import Path

import pytest

from sparsemlp.errors import InputError, SaveError
from sparsemlp.files import Record
from sparsemlp.runs.history import History


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def _record(epoch: int, loss: float = 1.0) -> Record:
    return {"epoch": epoch, "loss": loss}


def _fill_disk_after(n_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `os.write` through for so many bytes, and nothing through `os.fsync`."""
    write = os.write

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def limited(descriptor: int, data: bytes) -> int:
        nonlocal n_bytes
        if not n_bytes:
            refuse(descriptor)
        written = write(descriptor, data[:n_bytes])
        n_bytes -= written
        return written

    monkeypatch.setattr(os, "write", limited)
    monkeypatch.setattr(os, "fsync", refuse)


def test_no_file_reads_as_no_records(path: Path) -> None:
    history = History(path)
    assert history.read() == []
    history.keep_through(3)
    assert not path.exists()


def test_records_come_back_exactly(path: Path) -> None:
    records: list[Record] = [
        {"epoch": 1, "loss": 0.1 + 0.2, "tiny": 5e-324, "name": "Größe\n", "none": None},
        {"epoch": 2, "nested": {"list": [1, -0.0, True, "x"]}},
    ]
    for record in records:
        History(path).append(record)
    assert History(path).read() == records
    assert len(path.read_text().splitlines()) == 2


def test_non_finite_floats_are_strict_json_and_come_back_as_floats(path: Path) -> None:
    history = History(path)
    history.append({"epoch": 1, "loss": math.nan, "norms": [math.inf, {"low": -math.inf}]})
    refuse = pytest.fail
    strict = json.loads(path.read_text(), parse_constant=lambda name: refuse(f"{name} is no JSON"))
    assert strict == {"epoch": 1, "loss": "NaN", "norms": ["Infinity", {"low": "-Infinity"}]}
    (record,) = history.read()
    assert isinstance(record["loss"], float)
    assert math.isnan(record["loss"])
    assert record["norms"] == [math.inf, {"low": -math.inf}]


@pytest.mark.parametrize("n_lost", [1, 5, 20])
def test_a_last_line_cut_short_is_ignored_and_then_dropped(path: Path, n_lost: int) -> None:
    history = History(path)
    history.append(_record(1))
    history.append(_record(2))
    path.write_bytes(path.read_bytes()[:-n_lost])
    assert history.read() == [_record(1)]
    history.append(_record(3))
    assert history.read() == [_record(1), _record(3)]


@pytest.mark.parametrize("broken", ["{", "", "[1]", "\x00\x00", '{"epoch": 2} {"epoch": 3}'])
def test_a_broken_line_is_named(path: Path, broken: str) -> None:
    path.write_text(f'{{"epoch": 1}}\n{broken}\n{{"epoch": 3}}\n')
    for read in (History(path).read, lambda: History(path).keep_through(3)):
        with pytest.raises(InputError, match=r"metrics\.jsonl, line 2: ") as raised:
            read()
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("line", ['{"loss": 1}', '{"epoch": "2"}', '{"epoch": 2.5}'])
def test_keeping_needs_integer_epochs(path: Path, line: str) -> None:
    path.write_text(line + "\n")
    with pytest.raises(InputError, match=r"line 1: epoch is .*, not an integer"):
        History(path).keep_through(1)


def test_a_resumed_run_has_every_epoch_once(path: Path) -> None:
    history = History(path)
    for epoch, loss in [(1, 0.9), (2, 0.8), (2, 0.7), (3, 0.6), (4, 0.5)]:
        history.append(_record(epoch, loss))
    with path.open("a") as file:
        file.write('{"epoch": 5, "lo')
    history.keep_through(3)
    assert history.read() == [_record(1, 0.9), _record(2, 0.7), _record(3, 0.6)]
    assert path.read_bytes().endswith(b"}\n")
    assert os.listdir(path.parent) == [path.name]
    history.keep_through(0)
    assert history.read() == []


@pytest.mark.parametrize("n_bytes", [0, 7])
def test_a_full_disk_leaves_the_records_before(
    path: Path, n_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(path)
    history.append(_record(1))
    before = path.read_bytes()
    for write in (lambda: history.append(_record(2)), lambda: history.keep_through(1)):
        with monkeypatch.context() as patch:
            _fill_disk_after(n_bytes, patch)
            with pytest.raises(SaveError) as raised:
                write()
        message = str(raised.value)
        assert str(path) in message
        assert os.strerror(errno.ENOSPC) in message
        assert "\n" not in message
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == [path.name]
    history.append(_record(2))
    assert history.read() == [_record(1), _record(2)]


def test_a_missing_folder_is_a_save_error(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="No such file or directory"):
        History(tmp_path / "absent" / "metrics.jsonl").append(_record(1))
