"""A whole run: its folder and its numbers."""

import dataclasses
import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import finished_run
import jax
import numpy as np
import pytest
import tiny
from compiled_programs import ignore_half_written
from finished_run import EVERY_STEP
from PIL import Image

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.program import build_program
from sparsemlp.configuration.settings import resolve
from sparsemlp.runs.progress import Reporter
from sparsemlp.runs.run_folder import RunFolder
from sparsemlp.schedule import DENSE, MASKED
from sparsemlp.train.train_state import initial_state, no_totals
from sparsemlp.train.trainer import Trainer

data = tiny.ragged_data
whole_batches = tiny.data
finished = finished_run.finished

KEYS = {
    "epoch",
    "step",
    "loss",
    "train_top1",
    "train_top5",
    "test_top1",
    "test_top5",
    "test_loss",
    "density",
    "changed_blocks",
    "dropped_norm",
    "learning_rate",
    "seconds",
    "images_per_second",
    "dataset",
}
GRIDS = {
    "block_0/XPatch/kernel": (1, 2),
    "block_0/XChannel1/kernel": (2, 8),
    "block_0/XChannel2/kernel": (4, 4),
}


@pytest.fixture(scope="module")
def lines(finished: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]


def test_the_folder_holds_what_is_promised(finished: Path):
    promised = {
        "config.json",
        "environment.json",
        "metrics.jsonl",
        "mask_activity.npz",
        "checkpoints",
        "curves.png",
        "masks.png",
        "summary.json",
        "tensorboard",
    }
    assert {path.name for path in finished.iterdir()} - {".lock"} == promised


def test_there_is_one_complete_line_an_epoch(lines: list[dict[str, Any]]):
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert [line["step"] for line in lines] == [6, 12, 18]
    # So short a run has no warmup: a cosine from 1e-2 to 1e-5.
    cosine = [(1 + math.cos(math.pi * epoch / 3)) / 2 for epoch in range(3)]
    rates = [line["learning_rate"] for line in lines]
    assert rates == pytest.approx([1e-5 + (1e-2 - 1e-5) * c for c in cosine])
    for line in lines:
        assert set(line) == KEYS
        for name in ("train_top1", "train_top5", "test_top1", "test_top5", "changed_blocks"):
            assert 0 <= line[name] <= 1
        # Every one of the 44 training and 20 test images counts once.
        assert line["train_top1"] * 44 == pytest.approx(round(line["train_top1"] * 44))
        assert line["test_top1"] * 20 == pytest.approx(round(line["test_top1"] * 20))
        assert line["images_per_second"] == pytest.approx(44 / line["seconds"])


def test_masking_starts_after_the_dense_epochs(lines: list[dict[str, Any]]):
    assert [line["density"] for line in lines] == [1, 0.5, 0.5]
    assert (lines[0]["changed_blocks"], lines[0]["dropped_norm"]) == (0, 0)
    assert lines[1]["changed_blocks"] == 0.5
    assert all(line["dropped_norm"] > 0 for line in lines[1:])


def kept_blocks(params: Any) -> np.ndarray:
    """The larger half of the blocks of each kernel, of all kernels in one row."""
    rows, cols = tiny.BLOCK
    kept = []
    for kind in ("XPatch", "XChannel1", "XChannel2"):
        weights = np.asarray(params["block_0"][kind]["kernel"], np.float64)
        n_in, n_out = weights.shape
        tiles = weights.reshape(n_in // cols, cols, n_out // rows, rows)
        squares = np.square(tiles).sum(axis=(1, 3)).reshape(-1)
        kept.append(squares > np.median(squares))
    return np.concatenate(kept)


def test_the_numbers_are_those_of_training_step_by_step(
    finished: Path, lines: list[dict[str, Any]]
):
    """The run is repeated without the machinery of a run, and its masks are counted by hand."""
    settings = resolve(Config(**tiny.RUN), "tiny")
    data = tiny.dataset()
    program = build_program(settings, data)
    trainer = Trainer(program, data, tiny.BATCH)
    state = initial_state(program)
    before = np.ones(34, bool)
    activity = np.zeros(34, int)
    for epoch, line in enumerate(lines):
        masked, phase = epoch >= 1, MASKED if epoch >= 1 else DENSE
        state = dataclasses.replace(state, totals=no_totals())
        for position in range(tiny.STEPS_PER_EPOCH):
            activity += kept_blocks(state.params) if masked else 0
            state, _, _ = trainer.train(state, epoch, position, seconds=0.0, phase=phase)
        kept = kept_blocks(state.params) if masked else before
        assert line["changed_blocks"] == (kept != before).mean()
        before = kept
        assert int(state.totals["images"]) == 44
        assert line["loss"] == float(state.totals["loss"]) / 44
        assert line["train_top1"] == int(state.totals["top1"]) / 44
        assert line["train_top5"] == int(state.totals["top5"]) / 44
        found = trainer.evaluate(state, phase)
        assert line["test_top1"] == int(found.top1) / 20
        assert line["test_top5"] == int(found.top5) / 20
        assert line["test_loss"] == float(found.loss) / 20
        assert line["dropped_norm"] == float(found.dropped_norm)
    last = tiny.last_state(finished)
    assert last.step == 18
    tiny.assert_same_bits(last.state.params, state.params)
    with np.load(finished / "mask_activity.npz") as file:
        counts = np.concatenate([file[path].reshape(-1) for path in GRIDS])
    np.testing.assert_array_equal(counts, activity)


def test_mask_activity_has_a_count_for_each_block(finished: Path):
    with np.load(finished / "mask_activity.npz") as file:
        assert set(file.files) == {*GRIDS, "masked_steps", "dataset"}
        assert int(file["masked_steps"]) == 12
        for path, shape in GRIDS.items():
            assert file[path].shape == shape
            assert file[path].sum() == 12 * math.ceil(file[path].size / 2)


def test_the_summary_agrees_with_the_lines(finished: Path, lines: list[dict[str, Any]]):
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["dataset"] == "tiny.npz"
    assert summary["epochs"] == 3
    assert summary["density"] == 0.5
    shapes = [leaf.size for leaf in jax.tree.leaves(tiny.last_state(finished).state.params)]
    assert summary["parameters"] == sum(shapes)
    assert summary["loss"] == lines[-1]["loss"]
    assert summary["test_top1"] == lines[-1]["test_top1"]
    assert summary["test_top5"] == lines[-1]["test_top5"]
    assert summary["best_test_top1"] == max(line["test_top1"] for line in lines)
    assert summary["seconds"] == pytest.approx(sum(line["seconds"] for line in lines))


def test_every_file_names_the_data_set(finished: Path):
    with np.load(finished / "mask_activity.npz") as file:
        assert str(file["dataset"]) == "tiny.npz"
    for name in ("config.json", "environment.json", "summary.json"):
        assert json.loads((finished / name).read_text())["dataset"].endswith("tiny.npz"), name
    assert {record["dataset"] for record in tiny.records(finished)} == {"tiny.npz"}


@pytest.mark.parametrize("name", ["curves.png", "masks.png"])
def test_pictures_open(finished: Path, name: str):
    with Image.open(finished / name) as image:
        image.load()
        assert min(image.size) >= 300


def test_tensorboard_events_grow_with_the_run(finished: Path):
    (events,) = (finished / "tensorboard").iterdir()
    assert events.stat().st_size > 3 * 100


def test_the_last_two_checkpoints_and_the_best_are_kept(
    finished: Path, lines: list[dict[str, Any]]
):
    best = max(lines, key=lambda line: (line["test_top1"], line["step"]))["step"]
    found = {int(path.name) for path in (finished / "checkpoints").iterdir()}
    assert found >= {best, 18}
    assert len(found) <= 3


DIVERGING = {"lr": 1e30, "min_lr": 0.0, "epochs": 2, "mask_start_epoch": 0} | tiny.PLAIN


def test_a_loss_that_is_not_finite_stops_the_run(
    whole_batches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    assert tiny.start(whole_batches, out, **DIVERGING, **EVERY_STEP) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"stopped: .* NaN or infinite in epoch 1\b", line)
    assert "--allow-nan" in line
    assert "Traceback" not in line
    named = re.search(r"last good checkpoint is (\S+);", line)
    assert named is not None
    state = tiny.last_state(out)
    assert state.step == int(Path(named[1]).name)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.state.params))
    assert RunFolder(out).read_failure() == line.replace("stopped", "NotFiniteError", 1)
    assert tiny.resume(out, "--allow-nan") == 0
    assert not RunFolder(out).failure.exists()


def test_the_best_epoch_of_a_run_that_breaks_down_is_saved(whole_batches: Path, tmp_path: Path):
    out = tmp_path / "out"
    late = DIVERGING | {"epochs": 3, "warmup_epochs": 1, "warmup_lr": 1e-3}
    assert tiny.start(whole_batches, out, **late, checkpoint_every=1e6) == 3
    assert len(tiny.records(out)) == 1
    assert tiny.last_state(out).step == tiny.STEPS_PER_EPOCH


def test_a_model_that_no_memory_holds_is_one_line(
    whole_batches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """2**48 bytes, more than a process can address; asking numpy for such an array never ends."""
    assert tiny.start(whole_batches, tmp_path / "out", dim=2**23, expansion=1, ratio=0.0) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the memory is full: ")
    assert "; choose a smaller --batch-size or model, or --accumulate" in line


def test_a_reporter_hears_how_many_images_a_second_are_trained(
    whole_batches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(Reporter, "steps", lambda _, **told: heard.append(told))
    assert tiny.start(whole_batches, tmp_path / "out", epochs=1, mask_start_epoch=0) == 0
    (line,) = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert heard[-1]["done"] == heard[-1]["total"] == tiny.STEPS_PER_EPOCH
    assert heard[-1]["rate"] == pytest.approx(json.loads(line)["images_per_second"])


def test_a_run_that_may_be_nan_completes_with_strict_json(whole_batches: Path, tmp_path: Path):
    """Ten percent accuracy with a broken loss is a result."""
    out = tmp_path / "out"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ignore_half_written()
        assert tiny.start(whole_batches, out, "--allow-nan", **DIVERGING) == 0
    found = tiny.records(out)
    assert [record["epoch"] for record in found] == [1, 2]
    assert found[-1]["loss"] in ("NaN", "Infinity", "-Infinity")
    assert found[-1]["test_top1"] <= 0.1
    with Image.open(out / "curves.png") as image:
        image.load()
    constants: list[str] = []
    json.loads((out / "summary.json").read_text(), parse_constant=constants.append)
    assert constants == []
