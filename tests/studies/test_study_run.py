"""What a study knows of a run."""

import json
import math

import pytest
import synthetic_study as synthetic

from sparsemlp.runs.history import History
from sparsemlp.studies.run_reader import read_run
from sparsemlp.studies.study_run import as_float

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
    (tmp_path / "environment.json").write_text(json.dumps(synthetic.ENVIRONMENT))
    for epoch, seconds in enumerate((900.0, 1.0, 2.0, 3.0, 4.0, 50.0), start=1):
        record = {"epoch": epoch, "step": 10 * epoch, "test_top1": 0.1, "seconds": seconds}
        history.append(record)
    assert read_run(tmp_path, "a").step_ms == pytest.approx(300.0)


def test_runs_that_were_trained_together_have_no_time_of_their_own(folder):
    alone = read_run(folder, "a")
    environment = json.loads((folder / "environment.json").read_text())
    environment["population"] = {"members": 9, "engine": "reference"}
    (folder / "environment.json").write_text(json.dumps(environment))
    together = read_run(folder, "a")
    assert math.isfinite(alone.step_ms)
    assert math.isnan(together.step_ms)
    assert together.device == f"{alone.device}, 9 runs at once"
    later = synthetic.ENVIRONMENT | {"earlier": [environment]}
    (folder / "environment.json").write_text(json.dumps(later))
    at_last_alone = read_run(folder, "a")
    assert math.isnan(at_last_alone.step_ms)
    assert at_last_alone.device == alone.device
    (folder / "environment.json").write_text("cut sho")
    assert math.isnan(read_run(folder, "a").step_ms)


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


@pytest.mark.parametrize("rest", ["masked 0 (4, 4)", "masked 0 (4, 4) + sparse 0.5 (8, 8)"])
def test_a_mask_that_drops_nothing_is_no_mask(tmp_path, rest):
    run = synthetic.settings(config=f"ResMLP5 @ XPatch = masked 0 (32, 32); XChannel = {rest};")
    read = read_run(synthetic.write_run(tmp_path / "run", run, 1), "a")
    assert (read.masking, read.ratio) == (None, 0.0)
    assert read.is_dense == ("sparse" not in rest)


def test_a_run_that_never_masks_is_dense(tmp_path):
    for name, start in (("never", 2), ("at last", 1)):
        made = synthetic.settings(ratio=0.5, epochs=2, mask_start_epoch=start)
        run = read_run(synthetic.write_run(tmp_path / name, made), name)
        assert (run.is_dense, run.is_masked) == (start == 2, start == 1)
        assert run.label.endswith(", never begun") == (start == 2)


def test_layers_may_have_masks_of_their_own(tmp_path):
    text = "ResMLP5 @ XPatch = masked 0.5 (2, 2); XChannel = masked 0.3 (1, 1);"
    made = synthetic.settings(config=text, backward="dense", epochs=1)
    run = read_run(synthetic.write_run(tmp_path / "run", made), "a")
    assert (run.masking, run.ratio, run.is_masked, run.backward) == (None, None, True, "dense")
    dense = read_run(synthetic.write_run(tmp_path / "d", synthetic.settings(epochs=1)), "d")
    assert (dense.is_masked, dense.backward) == (False, None)
