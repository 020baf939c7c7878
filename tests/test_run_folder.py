"""A run folder is new or an error, and says on what its numbers were made."""

import json

import pytest

from sparsemlp.errors import InputError
from sparsemlp.run_folder import RunFolder, describe_environment


def test_a_folder_is_made_with_its_parents(tmp_path):
    RunFolder(tmp_path / "a" / "b").create()
    assert (tmp_path / "a" / "b").is_dir()


def test_an_empty_folder_is_taken(tmp_path):
    RunFolder(tmp_path).create()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["config.json", ".hidden"])
def test_a_folder_with_anything_in_it_is_refused_and_untouched(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=f"{tmp_path} is not empty: .*--resume {tmp_path}"):
        RunFolder(tmp_path).create()
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


def test_every_path_lies_in_the_folder_under_a_name_of_its_own(tmp_path):
    paths = [path for name, path in vars(RunFolder(tmp_path)).items() if name != "path"]
    assert {path.parent for path in paths} == {tmp_path}
    assert len(set(paths)) == len(paths)


def test_the_environment_can_be_written_and_names_versions_device_and_commit():
    environment = json.loads(json.dumps(describe_environment()))
    assert {"python", "jax", "jaxlib", "flax", "optax", "sparsemlp"} <= set(environment["versions"])
    assert environment["device"]
    assert environment["devices"] >= 1
    assert environment["cores"] >= 1
    assert "commit" in environment
