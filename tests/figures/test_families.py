"""A panel per backward pass and family of blocks, lines that are means over seeds."""

import numpy as np
import pytest
import synthetic_study as synthetic

from sparsemlp.figures.drawing import Chosen, NothingToDrawError
from sparsemlp.figures.families import accuracy_at_ratio, changed_blocks
from sparsemlp.figures.style import DENSE_MODEL
from sparsemlp.studies.study import read_study

small = synthetic.small


def test_all_blocks_at_a_ratio_have_a_panel_per_backward_pass_and_family(small):
    (drawing,) = accuracy_at_ratio(small, Chosen())
    axes = drawing.figure.axes
    assert len(axes) == 6
    assert [a.get_title() for a in axes[:2]] == ["blocks NxN", "blocks 1xN"]
    assert sorted(str(line.get_label()) for line in axes[0].lines[:2]) == ["2x2", "32x32"]
    runs = [r for r in small.trained if r.label == "1x8 at 0.8, masked backward"]
    mean = np.mean([run.column("test_top1") for run in runs], axis=0)
    np.testing.assert_allclose(np.asarray(axes[1].lines[0].get_ydata()), mean)
    with pytest.raises(NothingToDrawError, match=r"ratio 0\.3"):
        list(accuracy_at_ratio(small, Chosen(ratio=0.3)))


def test_changed_blocks_are_drawn_from_their_records(small):
    (drawing,) = changed_blocks(small, Chosen())
    assert len(drawing.figure.axes) == 6
    assert np.max(np.asarray(drawing.figure.axes[0].lines[0].get_ydata())) > 0


def of_one_block(folder, n_variants: int, epochs: int = 1, blocks=("2x2",)):
    for block in blocks:
        for number in range(n_variants):
            run = synthetic.settings(
                block=block, ratio=0.8, dropped_decay=1e-4 * number, epochs=epochs
            )
            synthetic.write_run(folder / f"{block}-{number}", run)
    synthetic.write_run(folder / "dense", synthetic.settings(epochs=epochs))
    return accuracy_at_ratio(read_study(folder), Chosen())


def test_many_other_options_of_one_block_look_different(tmp_path):
    (drawing,) = of_one_block(tmp_path, 9)
    axes = drawing.figure.axes[0]
    lines = [line for line in axes.lines if line.get_color() != DENSE_MODEL.color]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 9
    (legend,) = drawing.figure.legends
    assert len(legend.get_texts()) == 9
    assert axes.get_legend() is None
    assert "2x2 at ratio 0.8" in drawing.figure.get_suptitle()


def test_few_other_options_are_dashes_beside_the_colours_of_blocks(tmp_path):
    (drawing,) = of_one_block(tmp_path, 2, blocks=("2x2", "4x4"))
    axes = drawing.figure.axes[0]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["2x2", "4x4"]
    assert len({line.get_linestyle() for line in axes.lines[:4]}) == 2


def test_more_lines_than_can_be_told_apart_are_not_drawn(tmp_path):
    with pytest.raises(NothingToDrawError, match=r"5 settings .* than the 4 .* beside 2 blocks"):
        list(of_one_block(tmp_path, 5, blocks=("2x2", "4x4")))


def test_a_single_epoch_is_a_point_of_the_dense_model_as_well(tmp_path):
    (drawing,) = of_one_block(tmp_path, 1)
    assert {str(line.get_marker()) for line in drawing.figure.axes[0].lines} == {"."}


def test_the_legend_shows_the_colours_of_blocks_which_are_the_same_in_all_panels(tmp_path):
    for block, backward in (("2x2", "masked"), ("4x4", "masked"), ("4x4", "dense")):
        for epochs in (1, 2):
            run = synthetic.settings(block=block, ratio=0.8, backward=backward, epochs=epochs)
            synthetic.write_run(tmp_path / f"{block}-{backward}-{epochs}", run)
    (drawing,) = accuracy_at_ratio(read_study(tmp_path), Chosen())
    above, below = drawing.figure.axes
    legend = above.get_legend()
    assert legend is not None
    shown = legend.get_lines()
    assert {line.get_linestyle() for line in shown} == {"-"}
    of_block = dict(zip(("2x2", "4x4"), (line.get_color() for line in shown), strict=True))
    assert {line.get_color() for line in above.lines} == set(of_block.values())
    assert {line.get_color() for line in below.lines} == {of_block["4x4"]}
