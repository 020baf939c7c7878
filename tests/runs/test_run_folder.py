"""A run folder is new or an error, and says on what its numbers were made."""

import datetime
import json

import pytest

from sparsemlp.errors import InputError, SaveError
from sparsemlp.runs.run_folder import RunFolder


def test_a_folder_is_made_with_its_parents(tmp_path):
    RunFolder(tmp_path / "a" / "b").create()
    assert (tmp_path / "a" / "b").is_dir()


def test_an_empty_folder_is_taken(tmp_path):
    RunFolder(tmp_path).create()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["config.json", ".hidden"])
def test_a_folder_with_anything_in_it_is_refused_and_untouched(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=f"{tmp_path} is not empty: .*another") as caught:
        RunFolder(tmp_path).create()
    assert (f"--resume {tmp_path}" in str(caught.value)) is (name == "config.json")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


@pytest.mark.parametrize("inside", ["", "x/y"])
def test_a_file_in_the_way_is_refused(tmp_path, inside):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"cannot be made: .*--out"):
        RunFolder(tmp_path / "file" / inside).create()
    assert (tmp_path / "file").read_text() == "mine"


def test_only_a_folder_that_a_run_was_started_in_can_be_resumed(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=f"{folder} is no run folder"):
            RunFolder(folder).check_resumable()
    RunFolder(tmp_path).config.write_text("{}")
    RunFolder(tmp_path).check_resumable()
    with pytest.raises(InputError, match="x cannot be read: File name too long"):
        RunFolder(tmp_path / ("x" * 300)).check_resumable()


def test_every_path_lies_in_the_folder_under_a_name_of_its_own(tmp_path):
    paths = [path for name, path in vars(RunFolder(tmp_path)).items() if name != "path"]
    assert {path.parent for path in paths} == {tmp_path}
    assert len(set(paths)) == len(paths)


def test_leftovers_of_a_run_that_never_began_do_not_occupy_a_folder(tmp_path):
    (tmp_path / ".config.json.0f3a.saving").touch()
    with RunFolder(tmp_path).locked():
        pass
    RunFolder(tmp_path).create()


def test_only_one_process_may_write_in_a_folder(tmp_path):
    folder = RunFolder(tmp_path)
    with (
        folder.locked(),
        pytest.raises(InputError, match="another process is training in"),
        RunFolder(tmp_path).locked(),
    ):
        pass
    with folder.locked():
        pass


@pytest.mark.parametrize(
    ("text", "finished"), [(None, False), ('{"a": 1}', False), ('{"test_top1": 0.5}', True)]
)
def test_a_run_is_finished_once_its_summary_has_its_accuracy(tmp_path, text, finished):
    folder = RunFolder(tmp_path)
    if text is not None:
        folder.summary.write_text(text)
    assert folder.is_finished() == finished


def test_a_lost_or_damaged_environment_reads_as_empty(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.read_environment() == {}
    folder.environment.write_bytes(b"\xff{")
    assert folder.read_environment() == {}


def test_a_failure_is_one_line_with_its_kind_and_time(tmp_path):
    folder = RunFolder(tmp_path / "x")
    folder.write_failure(InputError("bad\n  block"))
    record = json.loads(folder.failure.read_text())
    assert set(record) == {"error", "kind", "time"}
    assert (record["error"], record["kind"]) == ("bad block", "InputError")
    assert datetime.datetime.fromisoformat(record["time"]).tzinfo is not None
    assert folder.read_failure() == "InputError: bad block"
    folder.write_failure(ZeroDivisionError())
    assert folder.read_failure() == "ZeroDivisionError: ZeroDivisionError"
    folder.failure.write_text("[")
    assert "cannot be read" in folder.read_failure()


def test_a_failure_that_cannot_be_recorded_is_an_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SaveError, match="cannot record that x failed"):
        RunFolder(tmp_path / "file" / "x").write_failure(ValueError("why"))


@pytest.mark.parametrize(
    "text", ['{"x"', "{}", "[]", '{"a": 0.5}', '{"a": 0.5, "b": 1.0}', '{"a": "x", "b": 0}']
)
def test_a_damaged_budget_is_an_error_that_names_the_file(tmp_path, text):
    folder = RunFolder(tmp_path)
    folder.budget.write_text('{"a": 0.5, "b": 0}')
    assert folder.read_budget({"a", "b"}) == {"a": 0.5, "b": 0.0}
    folder.budget.write_text(text)
    with pytest.raises(InputError, match=r"budget.json is damaged"):
        folder.read_budget({"a", "b"})
