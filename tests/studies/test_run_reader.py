"""A run is read from whatever a version of the program left, or refused with a reason."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import synthetic_study as synthetic

from sparsemlp.studies.run_reader import read_run, resolve_for

RUN = synthetic.settings(block="32x32", ratio=0.8, epochs=4)


@pytest.fixture
def folder(tmp_path):
    return synthetic.write_run(tmp_path / "run", RUN)


def test_options_and_keys_that_an_older_version_did_not_write_are_gaps(folder):
    (folder / "config.json").write_text(synthetic.older(RUN))
    lines = [{"epoch": epoch, "test_top1": 0.5} for epoch in range(1, RUN.epochs + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(folder, "a")
    assert run.status == "finished"
    assert run.settings == RUN
    assert np.isnan(run.column("density")).all()
    assert math.isnan(run.step_ms)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("config.json", '{"dataset": "cifar10", "from_the_future": 1}', "from_the_future"),
        ("config.json", "{", "is damaged, it is no JSON"),
        ("metrics.jsonl", "[]\n", "line 1"),
        ("metrics.jsonl", '{"epoch": 1}\n', "test_top1 is None"),
        ("metrics.jsonl", '{"epoch": "NaN", "test_top1": 0.5}\n', "epoch is nan"),
        ("metrics.jsonl", '{"epoch": 1, "step": "9", "test_top1": 0.5}\n', "step is '9'"),
        ("metrics.jsonl", "", "no epoch"),
        ("metrics.jsonl", '{"epoch": 1, "test_top1": 0.5}\n', "is of 4 epochs, metrics.jsonl of 1"),
        ("metrics.jsonl", '{"epoch": 2, "test_top1": 0.5}\n', "line 1: it is of epoch 2"),
    ],
)
def test_what_cannot_be_read_is_left_out_with_a_reason(folder, file, text, words):
    (folder / file).write_text(text)
    run = read_run(folder, "a")
    assert run.status == "unreadable"
    assert words in run.reason
    assert "\n" not in run.reason


def test_a_folder_without_a_configuration_is_left_out_with_a_reason(folder):
    (folder / "config.json").unlink()
    assert read_run(folder, "a").reason == "it has no config.json"


def test_a_stopped_run_says_how_far_it_came(tmp_path):
    run = read_run(synthetic.write_run(tmp_path / "run", RUN, 3), "a")
    assert (run.status, run.last("epoch")) == ("unfinished", 3)
    assert run.reason.startswith("3 of 4 epochs")


def test_a_failed_run_says_why_and_one_that_finished_since_is_finished(tmp_path):
    folder = tmp_path / "failed"
    synthetic.write_failure(folder, "the disk\nis full")
    run = read_run(folder, "a", RUN)
    assert (run.status, run.reason, run.settings) == ("failed", "the disk is full", RUN)
    finished = synthetic.write_run(tmp_path / "run", RUN)
    synthetic.write_failure(finished, "once")
    assert read_run(finished, "a").status == "finished"


@pytest.mark.parametrize("text", ['{"epochs"', '{"a": 1}', "[]"])
def test_a_damaged_summary_is_no_summary(folder, text):
    (folder / "summary.json").write_text(text)
    run = read_run(folder, "a")
    assert run.status == "unfinished"
    assert run.reason.endswith("summary.json is damaged")


def test_a_configuration_that_found_its_data_takes_the_defaults_of_that_data():
    assert resolve_for(synthetic.Config(), "digits (scikit-learn)").epochs == 30
    assert resolve_for(synthetic.Config(), "").epochs == 200


def test_a_file_that_may_not_be_read_is_a_reason(folder, monkeypatch):
    def refused(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refused)
    run = read_run(folder, "a")
    assert (run.status, run.reason) == ("unreadable", "Permission denied")
