"""What is pruned of a layer's other operands, as its kernels are told."""

import pytest

from pallas_kernels import Neighbours
from pallas_kernels.pruning import Pruning


@pytest.mark.parametrize(
    ("pruning", "ranked", "unit"),
    [
        (Pruning(), None, 1),
        (Pruning((8, 4)), (8, 4), 8),
        (Pruning((2, 3), pools=True), None, 2),
        (Pruning((6, 4), gradient=Neighbours(2, 4)), (6, 4), 6),
        (Pruning(gradient=Neighbours(2, 4, rescaled=True), positions=10), None, 10),
        (Pruning((4, 1), gradient=Neighbours(2, 4, rescaled=True), positions=10), (4, 1), 20),
    ],
)
def test_which_blocks_are_ranked_and_how_many_rows_hold_whole_ones(pruning, ranked, unit):
    assert pruning.ranked == ranked
    assert pruning.unit == unit
