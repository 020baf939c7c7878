"""Backward passes stand beside each other with the means of their seeds."""

import itertools

import numpy as np
import pytest
import synthetic_study as synthetic

from sparsemlp.figures.backwards import backwards
from sparsemlp.figures.drawing import Chosen, NothingToDrawError
from sparsemlp.studies.seeds import by_seed
from sparsemlp.studies.study import read_study

small = synthetic.small


def test_a_panel_over_ratios_and_one_over_blocks(small):
    (drawing,) = backwards(small, Chosen())
    over_ratios, over_blocks = drawing.figure.axes
    assert [text.get_text() for text in over_blocks.get_yticklabels()] == ["2x2", "32x32", "1x8"]
    (group,) = [
        g for g in by_seed(small.finished) if g.first.label == "32x32 at 0.5, masked backward"
    ]
    first = over_ratios.lines[0]
    assert np.asarray(first.get_xdata()).tolist() == [0.5, 0.8]
    assert np.asarray(first.get_ydata())[0] == group.top1()[0]


def test_one_setting_has_one_panel(tmp_path):
    for backward in ("masked", "dense"):
        run = synthetic.settings(block="32x32", ratio=0.8, backward=backward, epochs=1)
        synthetic.write_run(tmp_path / backward, run)
    study = read_study(tmp_path)
    (drawing,) = backwards(study, Chosen())
    assert [axes.get_title() for axes in drawing.figure.axes] == ["ratio 0.8"]
    with pytest.raises(NothingToDrawError, match=r"ratio 0\.5"):
        list(backwards(study, Chosen(ratio=0.5)))


def test_what_else_sets_runs_apart_has_a_row_and_a_line_of_its_own(tmp_path):
    moving = ({}, {"budget": "global"})
    for i, (more, ratio) in enumerate(itertools.product(moving, (0.5, 0.8))):
        for backward in ("masked", "straight_through"):
            run = synthetic.settings(
                block="32x32", ratio=ratio, backward=backward, epochs=1, **more
            )
            synthetic.write_run(tmp_path / f"{i}-{backward}", run)
    (drawing,) = backwards(read_study(tmp_path), Chosen())
    over_ratios, over_blocks = drawing.figure.axes
    rows = [text.get_text() for text in over_blocks.get_yticklabels()]
    assert rows == ["32x32", "32x32\nbudget=global"]
    points = [line.get_ydata() for line in over_blocks.lines if str(line.get_marker()) in "o^"]
    assert [np.asarray(y).tolist() for y in points] == [[0, 1]] * 2
    named = over_ratios.get_legend_handles_labels()[1]
    assert "straight-through, budget=global" in named
    assert len(set(named)) == 4


def test_one_backward_pass_is_no_comparison(tmp_path):
    synthetic.write_run(tmp_path / "a", synthetic.settings(block="2x2", ratio=0.8, epochs=1))
    with pytest.raises(NothingToDrawError, match="the masked one"):
        list(backwards(read_study(tmp_path), Chosen()))


def test_more_variants_than_dashes_are_rows_alone(tmp_path):
    for number, ratio in itertools.product(range(5), (0.5, 0.8)):
        for backward in ("masked", "straight_through"):
            run = synthetic.settings(
                block="32x32", ratio=ratio, backward=backward, epochs=1, lr=0.01 + number / 100
            )
            synthetic.write_run(tmp_path / f"{number}-{ratio}-{backward}", run)
    study = read_study(tmp_path)
    (drawing,) = backwards(study, Chosen())
    assert [axes.get_title() for axes in drawing.figure.axes] == ["ratio 0.8"]
    with pytest.raises(NothingToDrawError, match="4 settings of other options at most"):
        list(backwards(study, Chosen(ratio=0.3)))


def test_more_rows_than_a_page_holds_are_left_out(tmp_path):
    for number in range(60):
        for backward in ("masked", "dense"):
            run = synthetic.settings(
                block="32x32", ratio=0.8, backward=backward, epochs=1, lr=0.01 + number / 100
            )
            synthetic.write_run(tmp_path / f"{number}-{backward}", run)
    study = read_study(tmp_path)
    with pytest.raises(NothingToDrawError, match=r"60 settings at ratio 0\.8 are more rows"):
        list(backwards(study, Chosen()))


def test_the_legend_names_what_one_panel_alone_has(tmp_path):
    found = (("32x32", "masked"), ("8x8", "masked"), ("8x8", "straight_through"))
    runs = [(0.8, *own) for own in found] + [(0.5, "32x32", "masked")]
    for i, (ratio, block, backward) in enumerate(runs):
        run = synthetic.settings(block=block, ratio=ratio, backward=backward, epochs=1)
        synthetic.write_run(tmp_path / str(i), run)
    (drawing,) = backwards(read_study(tmp_path), Chosen())
    named = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert named == ["masked backward", "straight-through"]
