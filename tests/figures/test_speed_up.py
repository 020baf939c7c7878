"""The picture of scaling shows the points, and says what bounds them."""

import numpy as np
import pytest

from sparsemlp.cost_models.costs import KINDS, Shapes
from sparsemlp.cost_models.hardware import DEVICES, LINKS
from sparsemlp.cost_models.scaling import Cluster
from sparsemlp.cost_models.scaling_points import VARIANTS, scaling_points, strong, variants_of, weak
from sparsemlp.figures import render
from sparsemlp.figures.speed_up import draw_scaling, name_variant
from sparsemlp.figures.style import look

CLUSTER = Cluster(DEVICES["a100"], "tf32", LINKS["nvlink3"], LINKS["infiniband_hdr"])
MASKING = dict.fromkeys(KINDS, ((32, 32), 0.8))


def drawn(masking, devices):
    panels = {
        "strong": scaling_points(Shapes(), masking, CLUSTER, devices, strong(4096)),
        "weak": scaling_points(Shapes(), masking, CLUSTER, devices, weak(8)),
    }
    with look():
        return panels, draw_scaling(panels, "a title (theoretical)")


def test_curves_are_both_ends_and_cells_name_the_bounds():
    panels, drawing = drawn(MASKING, (1, 8, 64))
    curves, cells = drawing.figure.axes[:2], drawing.figure.axes[2:]
    for points, above, below in zip(panels.values(), curves, cells, strict=True):
        lines = [np.asarray(line.get_ydata()).tolist() for line in above.lines]
        for variant in list(VARIANTS)[1:]:
            own = [point for point in points if point.variant == variant]
            assert [point.speed_up for point in own] in lines
            assert [point.serial_speed_up for point in own] in lines
        letters = [text.get_text() for text in below.texts]
        assert len(letters) == len(points)
        assert set(letters) <= set("CMBL")
        ticks = [label.get_text() for label in cells[0].get_yticklabels()]
        assert ticks == [name_variant(variant) for variant in VARIANTS]
    assert "theoretical" in drawing.figure.get_suptitle()
    assert "Theoretical" in drawing.caption


@pytest.mark.parametrize("devices", [(1,), (1, 2, 24)])
def test_few_devices_and_a_dense_channel_mlp_are_drawn(devices):
    masking = {"XPatch": ((32, 32), 0.5)}
    assert "masked_fused" not in variants_of(masking)
    # 24 divides neither batch of 4096; the weak panel alone is drawn with it.
    points = scaling_points(Shapes(), masking, CLUSTER, devices, weak(8))
    with look():
        drawing = draw_scaling({"weak": points}, "a long title " * 20)
    assert render(drawing.figure, "png").startswith(b"\x89PNG")
    assert max(map(len, drawing.figure.get_suptitle().split("\n"))) < 90
    names = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert name_variant("masked_fused") not in names
    assert name_variant("straight_through") in names
