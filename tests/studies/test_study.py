"""A study knows its runs, those that are missing, and what sets them apart."""

import json
from pathlib import Path

import pytest
import synthetic_study as synthetic

from sparsemlp.errors import InputError
from sparsemlp.studies.study import read_study

small = synthetic.small


def test_a_sweep_knows_what_is_finished_stopped_failed_and_missing(small):
    statuses = [run.status for run in small.runs]
    assert len(statuses) == 38
    assert statuses[-3:] == ["unfinished", "failed", "missing"]
    assert set(statuses[:-3]) == {"finished"}
    assert small.grid_name == "synthetic.yaml"
    assert "<&>" in small.grid_text
    assert small.runs[-1].settings is not None
    assert not small.unplanned


def test_runs_at_any_depth_are_a_study_of_which_nothing_is_missing(tmp_path):
    run = synthetic.settings(epochs=2)
    synthetic.write_run(tmp_path / "b" / "c", run)
    synthetic.write_run(tmp_path / "a", run, 1)
    (tmp_path / "a" / "checkpoints").mkdir()
    (tmp_path / "a" / "checkpoints" / "config.json").write_text("{}")
    study = read_study(tmp_path)
    assert [(run.name, run.status) for run in study.runs] == [
        ("a", "unfinished"),
        ("b/c", "finished"),
    ]
    assert study.grid_name is None
    assert read_study(tmp_path / "a").runs[0].name == "a"


def test_links_are_followed_and_no_run_is_told_twice(tmp_path):
    elsewhere, here = tmp_path / "scratch", tmp_path / "sweep"
    run = synthetic.settings(epochs=1)
    synthetic.write_sweep(here, [run])
    synthetic.write_run(elsewhere / "dense-seed0", run)
    (here / "runs").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(here)
    (here / "again").symlink_to(elsewhere)
    found = [(run.name, run.status) for run in read_study(here).runs]
    assert found == [("dense-seed0", "finished")]


def test_a_copy_beside_the_place_of_a_run_does_not_stand_for_it(tmp_path):
    run = synthetic.settings(epochs=2)
    synthetic.write_sweep(tmp_path, [run])
    synthetic.write_run(tmp_path / "runs" / "dense-seed0", run)
    synthetic.write_run(tmp_path / "dense-seed0", run, 1)
    study = read_study(tmp_path)
    assert [(run.name, run.status) for run in study.runs] == [
        ("dense-seed0", "finished"),
        ("../dense-seed0", "unfinished"),
    ]
    assert study.unplanned == ("../dense-seed0",)


def test_a_run_that_the_grid_does_not_know_is_named(tmp_path):
    synthetic.write_sweep(tmp_path, [synthetic.settings(epochs=2)])
    synthetic.write_run(tmp_path / "runs" / "other", synthetic.settings(epochs=2))
    study = read_study(tmp_path)
    assert [(run.name, run.status) for run in study.runs] == [
        ("dense-seed0", "missing"),
        ("other", "finished"),
    ]
    assert study.unplanned == ("other",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"version": 2, "runs": []}', "version 2"),
        ('{"version": 1}', "version 1"),
        ("[", "cannot be read"),
        ('{"version": 1, "runs": [{}]}', "run 1 has no name"),
    ],
)
def test_a_sweep_that_cannot_be_read_is_an_error(tmp_path, text, words):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(InputError, match=words):
        read_study(tmp_path)


def test_a_planned_configuration_of_another_version_is_missing_with_a_reason(tmp_path):
    sweep = {"version": 1, "runs": [{"name": "a", "config": {"dataset": "cifar10", "new": 1}}]}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    (run,) = read_study(tmp_path).runs
    assert run.status == "missing"
    assert "configuration cannot be read" in run.reason


def test_no_folder_and_no_run_are_errors(tmp_path):
    with pytest.raises(InputError, match="is no folder"):
        read_study(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no run lies below"):
        read_study(tmp_path)


def test_unreadable_runs_are_grouped_by_their_reason(tmp_path):
    for name in "ab":
        synthetic.write_run(tmp_path / name, synthetic.settings(epochs=1))
        (tmp_path / name / "config.json").write_text("{}")
    ((reason, names),) = read_study(tmp_path).unreadable().items()
    assert names == ["a", "b"]
    assert "config.json" in reason


def test_what_differs_is_told_once(small):
    assert small.differing == ("block", "ratio", "backward", "seed")
    assert {small.variant(run) for run in small.runs} == {""}
    assert small.label(small.runs[0]) == small.runs[0].label
    assert small.other_options(small.runs[0]) == ""


def test_a_folder_that_cannot_be_listed_is_not_missing(small, monkeypatch):
    (missing,) = [run.name for run in small.runs if run.status == "missing"]
    folder = small.path / "runs" / missing
    iterdir = Path.iterdir

    def refused(path: Path):
        if path == folder:
            raise PermissionError(13, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    (run,) = [run for run in read_study(small.path).runs if run.name == missing]
    assert (run.status, run.settings is not None) == ("unreadable", True)
    assert "Permission denied" in run.reason
