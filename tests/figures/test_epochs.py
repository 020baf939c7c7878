"""Lines over the epochs are the records; bands and means are over seeds."""

import math

import numpy as np
import pytest
import synthetic_study as synthetic

from sparsemlp.figures.drawing import Chosen, NothingToDrawError
from sparsemlp.figures.epochs import accuracy, curves
from sparsemlp.figures.style import look
from sparsemlp.runs.history import History
from sparsemlp.studies.study import read_study

small = synthetic.small


def test_accuracy_has_a_line_a_setting_with_its_last_value(tmp_path):
    synthetic.write_run(tmp_path / "a", synthetic.settings(epochs=3))
    synthetic.write_run(tmp_path / "b", synthetic.settings(block="4x4", ratio=0.5, epochs=3), 2)
    study = read_study(tmp_path)
    (drawing,) = accuracy(study, Chosen())
    (axes,) = drawing.figure.axes
    labels = [str(line.get_label()) for line in axes.lines]
    tops = [run.last("test_top1") for run in study.runs]
    assert labels == [
        f"dense: {tops[0]:.2%}",
        f"4x4 at 0.5, masked backward: {tops[1]:.2%} after 2 epochs",
    ]
    for line, run in zip(axes.lines, study.runs, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), run.column("test_top1"))
    assert synthetic.SOURCE in axes.get_title()


def test_more_settings_than_can_be_told_apart_are_not_drawn(tmp_path):
    for index in range(29):
        synthetic.write_run(tmp_path / str(index), synthetic.settings(lr=index / 100, epochs=1))
    with pytest.raises(NothingToDrawError, match="29 settings"):
        list(accuracy(read_study(tmp_path), Chosen()))


def test_more_curves_than_can_be_told_apart_are_not_drawn(tmp_path):
    for index in range(29):
        run = synthetic.settings(block="32x32", ratio=0.8, epochs=1, lr=(index + 1) / 100)
        synthetic.write_run(tmp_path / str(index), run)
    with pytest.raises(
        NothingToDrawError, match=r"29 settings of 32x32 at 0\.8, and dense ones, are more lines"
    ):
        list(curves(read_study(tmp_path), Chosen()))


def test_long_names_are_broken_and_stay_on_the_page(tmp_path):
    for i, decay in enumerate((1e-4, 2e-4, 4e-4)):
        own = {"dropped_decay": decay, "budget": "global", "freeze_epoch": 2, "lr": 0.01 + i}
        own |= {"backward": "straight_through", "block": "32x32", "ratio": 0.8, "epochs": 3}
        synthetic.write_run(tmp_path / str(i), synthetic.settings(**own, mask_start_epoch=0))
    study = read_study(tmp_path)
    for draw in (accuracy, curves):
        with look():
            (drawing,) = draw(study, Chosen())
            drawing.figure.canvas.draw()
        (legend,) = drawing.figure.legends
        box, page = legend.get_window_extent(), drawing.figure.bbox
        assert 0 <= box.x0 < box.x1 <= page.x1
        assert box.y0 >= 0


def test_curves_have_a_line_per_backward_pass_and_the_dense_model(small):
    (drawing,) = curves(small, Chosen("2x2", 0.5))
    top1, loss = drawing.figure.axes
    names = [str(line.get_label()).split(":")[0] for line in top1.lines]
    assert names == ["masked backward", "dense backward", "straight-through", "dense model"]
    assert len(loss.lines) == 4
    assert len(top1.collections) == 4
    with pytest.raises(NothingToDrawError, match=r"no run of 8x8 at 0\.8"):
        list(curves(small, Chosen("8x8")))


def test_a_loss_that_diverged_or_broke_is_drawn(tmp_path):
    synthetic.write_run(tmp_path / "a", synthetic.settings(block="32x32", ratio=0.8, epochs=3), 1)
    history = History(tmp_path / "a" / "metrics.jsonl")
    for epoch, loss in ((2, 1e12), (3, math.nan)):
        history.append({"epoch": epoch, "test_top1": 0.1, "loss": loss})
    (drawing,) = curves(read_study(tmp_path), Chosen())
    assert drawing.figure.axes[1].get_yscale() == "log"
    assert drawing.figure.axes[0].get_yscale() == "linear"


def test_losses_none_of_which_is_finite_are_told(tmp_path):
    synthetic.write_run(tmp_path / "a", synthetic.settings(block="32x32", ratio=0.8, epochs=3), 0)
    history = History(tmp_path / "a" / "metrics.jsonl")
    history.append({"epoch": 1, "test_top1": 0.1, "loss": math.nan})
    (drawing,) = curves(read_study(tmp_path), Chosen())
    top1, loss = drawing.figure.axes
    assert [text.get_text() for text in loss.texts] == ["no finite loss"]
    assert not top1.texts


def test_seeds_that_are_behind_are_named_in_both_figures(tmp_path):
    for seed, n_epochs in ((0, 3), (1, 2)):
        own = synthetic.settings(block="32x32", ratio=0.8, epochs=3, seed=seed)
        synthetic.write_run(tmp_path / str(seed), own, n_epochs)
    study = read_study(tmp_path)
    for draw in (accuracy, curves):
        (drawing,) = draw(study, Chosen())
        labels = [str(line.get_label()) for line in drawing.figure.axes[0].lines]
        assert any("1 of 2 seeds" in label for label in labels)
