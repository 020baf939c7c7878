"""A file is the old one or the new one, whatever happens while it is written."""

import csv
import errno
import json
import os
from pathlib import Path

import pytest

from sparsemlp.errors import InputError, SaveError
from sparsemlp.files import check_writable, sync, write_csv, write_json, write_whole


def test_a_file_is_made_and_replaced(tmp_path):
    for content in (b"first", b"", b"third\x00"):
        write_whole(tmp_path / "file", lambda file, content=content: file.write(content))
        assert (tmp_path / "file").read_bytes() == content
    assert os.listdir(tmp_path) == ["file"]


def test_a_reader_meanwhile_finds_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"new, half")
        file.flush()
        assert path.read_bytes() == b"old"

    write_whole(path, write)
    assert path.read_bytes() == b"new, half"


def test_of_two_writers_at_once_each_writes_a_whole_file(tmp_path):
    path = tmp_path / "file"

    def write(file):
        file.write(b"outer, half")
        file.flush()
        write_whole(path, lambda other: other.write(b"inner"))
        assert path.read_bytes() == b"inner"
        file.write(b", and the rest")

    write_whole(path, write)
    assert path.read_bytes() == b"outer, half, and the rest"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_full_disk_leaves_all_as_it_was_and_says_so(tmp_path, exists):
    path = tmp_path / "file"
    if exists:
        path.write_bytes(b"old")

    def write(file):
        file.write(b"new")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(SaveError, match=f"cannot write {path}: No space left on device") as caught:
        write_whole(path, write)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["file"] * exists
    assert not exists or path.read_bytes() == b"old"


def test_a_write_that_the_system_refuses_is_a_save_error(tmp_path):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "file"
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(SaveError, match="File too large"):
            write_whole(path, lambda file: file.write(bytes(11)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_is_a_save_error(tmp_path):
    with pytest.raises(SaveError, match="No such file or directory"):
        write_whole(tmp_path / "absent" / "file", lambda file: file.write(b""))


def test_whether_a_file_can_be_written_is_known_before(tmp_path):
    kept = tmp_path / "kept.json"
    kept.write_text("{}")
    for path in (kept, tmp_path / "new.json"):
        check_writable(path, f"--out={path}")
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
    assert kept.read_text() == "{}"
    for folder in (tmp_path, Path(), Path("/")):
        with pytest.raises(InputError, match="--out=here is a folder: name a file"):
            check_writable(folder, "--out=here")
    for bad in (tmp_path / "nowhere" / "a.json", kept / "a.json", tmp_path / (260 * "a")):
        with pytest.raises(InputError, match=r"--out=there cannot be written: .*; see to that"):
            check_writable(bad, "--out=there")


def test_json_is_read_back(tmp_path):
    value = {
        "text": "é\n",
        "numbers": [1, 0.1 + 0.2, 1e300],
        "nothing": None,
        "deep": {"yes": True},
    }
    write_json(tmp_path / "file.json", value)
    assert json.loads((tmp_path / "file.json").read_text()) == value


def test_files_and_folders_can_be_forced_to_the_disk(tmp_path):
    (tmp_path / "file").touch()
    sync(tmp_path / "file")
    sync(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "absent")


def test_numbers_are_unrounded_and_commas_quoted(tmp_path):
    write_csv(tmp_path / "a.csv", ["name", "number"], [["one, two", 0.1 + 0.2], ["b", 10**20]])
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["name", "number"], ["one, two", repr(0.1 + 0.2)], ["b", str(10**20)]]


def test_a_folder_in_the_place_of_the_table_is_named(tmp_path):
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(SaveError):
        write_csv(tmp_path / "a.csv", ["name"], [])
