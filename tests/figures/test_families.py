"""A panel per backward pass and family of blocks, lines that are means over seeds."""

import numpy as np
import pytest
import synthetic_study as synthetic

from sparsemlp.figures.drawing import Chosen, NothingToDrawError
from sparsemlp.figures.families import accuracy_at_ratio, changed_blocks

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
