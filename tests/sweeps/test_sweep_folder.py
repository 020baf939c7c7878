"""A sweep's folder says which runs it has and how far each is."""

import json
import os

import pytest

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.settings import resolve
from sparsemlp.errors import InputError
from sparsemlp.sweeps.sweep_folder import Sweep, SweepFolder, SweepRun


@pytest.fixture
def folder(tmp_path) -> SweepFolder:
    return SweepFolder(tmp_path / "a" / "sweep")


SWEEP = Sweep(
    "grid.yaml",
    "hp:\n  seed: [0, 1]\n",
    [SweepRun(f"dense-seed{n}", resolve(Config(seed=n), "digits")) for n in (0, 1)],
)


def test_what_was_written_is_read_back(folder):
    assert folder.read() is None or pytest.fail("there is none")
    folder.create()
    folder.write(SWEEP)
    read = folder.read()
    assert (read.grid, read.text) == (SWEEP.grid, SWEEP.text)
    assert [run.name for run in read.runs] == ["dense-seed0", "dense-seed1"]
    assert [resolve(run.config, "digits") for run in read.runs] == [r.config for r in SWEEP.runs]


def test_the_file_has_the_promised_form(folder):
    folder.create()
    folder.write(SWEEP)
    record = json.loads(folder.sweep.read_text())
    assert set(record) == {"version", "grid", "text", "runs"}
    assert record["version"] == 1
    assert set(record["runs"][0]) == {"name", "config", "notice"}
    assert record["runs"][1]["config"]["seed"] == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "cannot be read as a sweep"),
        ("[]", "cannot be read as a sweep"),
        ('{"version": 2}', "is of version 2, this program reads 1"),
        (
            '{"version": 1, "grid": "g", "text": "", "runs": [{"name": "../x", "config": {}}]}',
            "../x",
        ),
        (
            '{"version": 1, "grid": "g", "text": "", "runs": [{"name": "x", "config": {}}]}',
            "no config",
        ),
    ],
)
def test_another_version_or_a_damaged_file_is_refused_with_a_reason(folder, text, told):
    folder.create()
    folder.sweep.write_text(text)
    with pytest.raises(InputError) as caught:
        folder.read()
    assert told in str(caught.value)
    assert str(folder.sweep) in str(caught.value)


def test_a_folder_with_other_things_in_it_is_refused_and_untouched(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"not empty and no sweep, it holds thesis\.tex"):
        SweepFolder(tmp_path).create()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_could_not_be_made_a_sweep_is_told_without_making_anything(tmp_path):
    SweepFolder(tmp_path / "absent").check()
    assert not (tmp_path / "absent").exists()
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"is not empty and no sweep, it holds thesis\.tex"):
        SweepFolder(tmp_path).check()
    with pytest.raises(InputError, match="is no folder for a sweep"):
        SweepFolder(tmp_path / "thesis.tex").check()


def test_a_folder_that_nobody_lets_us_make_is_told_without_trying(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    with pytest.raises(InputError, match=rf"you may not write in {tmp_path}; .* --out"):
        SweepFolder(tmp_path / "not" / "there").check()


def test_a_launcher_that_was_killed_early_leaves_a_folder_that_can_be_taken(folder):
    folder.create()
    with folder.locked():
        (folder.path / ".sweep.json.0f3a.saving").touch()
    folder.create()
    with (
        folder.locked(),
        pytest.raises(InputError, match="another sweep is running in"),
        folder.locked(),
    ):
        pass


def test_files_in_the_run_folder_say_how_far_a_run_is(folder):
    folder.create()
    place = folder.run("x")
    assert folder.state("x") == "new"
    place.path.mkdir(parents=True)
    place.config.write_text("{}")
    assert folder.state("x") == "begun"
    place.write_failure(ValueError("a\n  b"))
    assert folder.state("x") == "failed"
    place.failure.unlink()
    place.summary.write_text('{"epochs": 3')
    assert folder.state("x") == "begun"
    place.summary.write_text('{"test_top1": 0.5}')
    assert folder.state("x") == "finished"
    # A run that failed after its last epoch has all that a finished one has.
    place.write_failure(ValueError("no pictures"))
    assert folder.state("x") == "finished"
