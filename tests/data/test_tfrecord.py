"""TFRecord framing is read back and truncation is noticed."""

import struct
from pathlib import Path

import pytest

from sparsemlp.data.tfrecord import read_tfrecord


def framed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + b"1234" + data + b"5678"


def test_records_come_back_in_order(tmp_path: Path):
    records = [b"first", b"", b"x" * 1000]
    (tmp_path / "f").write_bytes(b"".join(map(framed, records)))
    assert list(read_tfrecord(tmp_path / "f")) == records


def test_a_file_that_ends_inside_a_record_is_noticed(tmp_path: Path):
    whole = framed(b"some data")
    for n_bytes in range(1, len(whole)):
        (tmp_path / "f").write_bytes(whole[:n_bytes])
        with pytest.raises(EOFError, match="record"):
            list(read_tfrecord(tmp_path / "f"))


def test_a_length_that_no_file_has_is_refused_before_it_is_read(tmp_path: Path):
    path = tmp_path / "damaged"
    path.write_bytes(struct.pack("<Q", 2**62) + b"1234")
    with pytest.raises(EOFError, match="shorter than its record of 4611686018427387904 bytes"):
        list(read_tfrecord(path))
