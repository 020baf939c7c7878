"""A run is read from whatever a version of the program left, or refused with a reason."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import synthetic_study as synthetic

from sparsemlp.runs.history import History
from sparsemlp.studies.study_run import as_float, read_run, resolve_for

RUN = synthetic.settings(block="32x32", ratio=0.8, epochs=4)


@pytest.fixture
def folder(tmp_path):
    return synthetic.write_run(tmp_path / "run", RUN)


def test_a_finished_run_is_read_whole(folder):
    run = read_run(folder, "a")
    assert (run.status, run.reason) == ("finished", "")
    assert run.settings == RUN
    made = synthetic.records(RUN)
    assert run.column("test_top1").tolist() == [record["test_top1"] for record in made]
    assert run.last("loss") == made[-1]["loss"]
    assert (run.block, run.ratio, run.is_dense) == ("32x32", 0.8, False)
    assert run.dataset == synthetic.SOURCE
    assert run.device == "2 cores of a synthetic processor"
    assert run.steps_per_epoch == synthetic.STEPS_PER_EPOCH


@pytest.mark.parametrize(
    ("devices", "named"), [(1, "NVIDIA H200"), (4, "4 x NVIDIA H200")], ids=["one", "four"]
)
def test_devices_are_named_and_counted(folder, devices, named):
    environment = {"backend": "gpu", "device": "NVIDIA H200", "devices": devices}
    (folder / "environment.json").write_text(json.dumps(synthetic.ENVIRONMENT | environment))
    assert read_run(folder, "a").device == named


def test_the_time_of_a_step_is_the_median_of_the_last_five_epochs(tmp_path):
    history = History(tmp_path / "metrics.jsonl")
    (tmp_path / "config.json").write_text(synthetic.to_json(RUN))
    for epoch, seconds in enumerate((900.0, 1.0, 2.0, 3.0, 4.0, 50.0), start=1):
        record = {"epoch": epoch, "step": 10 * epoch, "test_top1": 0.1, "seconds": seconds}
        history.append(record)
    assert read_run(tmp_path, "a").step_ms == pytest.approx(300.0)


def test_runs_that_were_trained_together_have_no_time_of_their_own(folder):
    alone = read_run(folder, "a")
    environment = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps(environment | {"population": 9}))
    together = read_run(folder, "a")
    assert math.isfinite(alone.step_ms)
    assert math.isnan(together.step_ms)
    assert together.device == f"{alone.device}, 9 runs at once"


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
        ("config.json", "{", "no configuration"),
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


def test_a_damaged_summary_is_no_summary(folder):
    (folder / "summary.json").write_text('{"epochs"')
    assert read_run(folder, "a").status == "unfinished"


@pytest.mark.parametrize(
    ("text", "block", "ratio"),
    [
        ("ResMLP5 @ XPatch = masked 0.5 (2, 2); XChannel = masked 0.5 (2, 2);", "2x2", 0.5),
        ("ResMLP5 @ XPatch = masked 0.5 (2, 2); XChannel = masked 0.3 (2, 2);", None, None),
        ("ResMLP5 @ XChannel = sparse 0.5 (8, 8);", None, 0.0),
    ],
)
def test_the_rule_of_a_model_string_is_that_of_its_layers(tmp_path, text, block, ratio):
    run = read_run(synthetic.write_run(tmp_path / "a", synthetic.settings(config=text)), "a")
    assert (run.block, run.ratio) == (block, ratio)


def test_only_numbers_are_numbers():
    assert as_float(3) == 3.0
    assert math.isnan(as_float("NaN"))
    assert math.isnan(as_float(None))


def test_a_configuration_that_found_its_data_takes_the_defaults_of_that_data():
    assert resolve_for(synthetic.Config(), "digits (scikit-learn)").epochs == 30
    assert resolve_for(synthetic.Config(), "").epochs == 200


@pytest.mark.parametrize("rest", ["masked 0 (4, 4)", "masked 0 (4, 4) + sparse 0.5 (8, 8)"])
def test_a_mask_that_drops_nothing_is_no_mask(tmp_path, rest):
    run = synthetic.settings(config=f"ResMLP5 @ XPatch = masked 0 (32, 32); XChannel = {rest};")
    read = read_run(synthetic.write_run(tmp_path / "run", run, 1), "a")
    assert (read.masking, read.ratio) == (None, 0.0)
    assert read.is_dense == ("sparse" not in rest)


def test_layers_may_have_masks_of_their_own(tmp_path):
    text = "ResMLP5 @ XPatch = masked 0.5 (2, 2); XChannel = masked 0.3 (1, 1);"
    made = synthetic.settings(config=text, backward="dense", epochs=1)
    run = read_run(synthetic.write_run(tmp_path / "run", made), "a")
    assert (run.masking, run.ratio, run.is_masked, run.backward) == (None, None, True, "dense")
    dense = read_run(synthetic.write_run(tmp_path / "d", synthetic.settings(epochs=1)), "d")
    assert (dense.is_masked, dense.backward) == (False, None)


def test_a_file_that_may_not_be_read_is_a_reason(folder, monkeypatch):
    def refused(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refused)
    run = read_run(folder, "a")
    assert (run.status, run.reason) == ("unreadable", "Permission denied")
