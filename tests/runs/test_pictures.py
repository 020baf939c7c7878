"""Pictures are drawn from the files of a run, whatever is in them."""

import math

import numpy as np
import pytest
from PIL import Image

from sparsemlp.runs import pictures
from sparsemlp.runs.history import History
from sparsemlp.runs.pictures import draw
from sparsemlp.runs.run_folder import RunFolder


def record(epoch: int, **changes: object) -> dict[str, object]:
    return {
        "epoch": epoch,
        "loss": 2.3 / epoch,
        "train_top1": 0.1,
        "test_top1": 0.2,
        "test_top5": 0.6,
        "density": 0.5,
        "changed_blocks": 0.1,
        "dropped_norm": 1.0,
        "learning_rate": 0.01,
        "dataset": "tiny.npz",
    } | changes


def folder_of(path, records, activity=None, masked_steps=0) -> RunFolder:
    folder = RunFolder(path)
    for one in records:
        History(folder.metrics).append(one)
    if activity is not None:
        np.savez(folder.mask_activity, **activity, masked_steps=masked_steps, dataset="tiny.npz")
    return folder


def pixels(path) -> np.ndarray:
    """The picture, which must be one and be neither empty nor a stamp."""
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        assert all(300 <= side <= 4000 for side in image.size)
        found = np.asarray(image.convert("RGB"))
    assert len(np.unique(found.reshape(-1, 3), axis=0)) > 10
    return found


@pytest.mark.parametrize("n_epochs", [1, 200])
def test_curves_are_drawn_for_any_number_of_epochs(tmp_path, n_epochs):
    folder = folder_of(tmp_path, [record(epoch) for epoch in range(1, n_epochs + 1)])
    draw(folder, "a title")
    pixels(folder.curves)
    assert not folder.masks.exists()


def test_long_titles_stay_on_the_picture(tmp_path):
    folder = folder_of(tmp_path, [record(1)], ACTIVITY, masked_steps=4)
    draw(folder, "a title that is long " * 12)
    for path in (folder.curves, folder.masks):
        found = pixels(path)
        edges = found[:, :3], found[:, -3:], found[:3], found[-3:]
        assert all((edge == 255).all() for edge in edges)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_curves_of_a_run_that_collapsed_are_drawn(tmp_path, bad):
    collapsed = record(2, loss=bad, dropped_norm=bad, test_top1=0.0)
    folder = folder_of(tmp_path, [record(1), collapsed])
    draw(folder, "a title")
    pixels(folder.curves)


ACTIVITY = {
    "block_0/XPatch/kernel": np.array([[3, 0], [1, 4]]),
    "block_0/XChannel1/kernel": np.arange(8).reshape(2, 4) % 5,
    "block_1/XPatch/kernel": np.array([[4, 4], [0, 0]]),
}


def test_masks_are_drawn_with_a_row_of_maps_for_each_block(tmp_path):
    heights = []
    for name, activity in (
        ("one", {k: v for k, v in ACTIVITY.items() if k.startswith("block_0")}),
        ("two", ACTIVITY),
    ):
        (tmp_path / name).mkdir()
        folder = folder_of(tmp_path / name, [record(1)], activity, masked_steps=4)
        draw(folder, "a title")
        heights.append(pixels(folder.masks).shape[0])
    assert heights[0] < heights[1]


@pytest.mark.parametrize(("activity", "masked_steps"), [({}, 5), (ACTIVITY, 0)])
def test_without_a_masked_step_there_are_no_masks_to_draw(tmp_path, activity, masked_steps):
    folder = folder_of(tmp_path, [record(1)], activity, masked_steps)
    draw(folder, "a title")
    assert folder.curves.exists()
    assert not folder.masks.exists()


def test_a_run_without_an_epoch_has_no_curves(tmp_path):
    draw(folder_of(tmp_path, []), "a title")
    assert list(tmp_path.iterdir()) == []


def test_pictures_are_replaced_and_nothing_is_left_beside_them(tmp_path):
    folder = folder_of(tmp_path, [record(1)], ACTIVITY, masked_steps=4)
    for _ in range(2):
        draw(folder, "a title $with_$ [marks] ^ $5 {and \\ }")
    names = {"metrics.jsonl", "mask_activity.npz", "curves.png", "masks.png"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_layers_outside_blocks_have_a_row_each(tmp_path):
    shares = {f"conv_{i}/kernel": np.arange(8).reshape(4, 2) % 5 / 4 for i in (2, 3, 8)}
    figure = pictures._masks(shares, 4, "a title")
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in drawn] == ["conv_2", "conv_3", "conv_8"]
    assert all(axes.axison for axes in drawn)
    np.testing.assert_array_equal(drawn[0].images[0].get_array(), shares["conv_2/kernel"])


def test_the_loss_of_held_out_images_is_a_curve_where_there_are_some():
    records = [record(epoch, validation_loss=2.5) for epoch in (1, 2)]
    (held_out,) = set(_labels(records)) - set(_labels([record(1), record(2)]))
    assert "held-out" in held_out


def _labels(records: list[dict[str, object]]) -> list[str]:
    figure = pictures._curves(records, "a title")
    return [str(line.get_label()) for axes in figure.axes for line in axes.lines]
