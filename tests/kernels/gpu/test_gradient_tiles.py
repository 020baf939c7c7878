"""How the kernel's gradient is cut for Hopper."""

import itertools

import pytest

from pallas_kernels import SparseLayer
from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.gradient_tiles import (
    DEPTH_BYTES,
    ROWS,
    GradientTiles,
    search_space,
    shape_of,
)
from pallas_kernels.mosaic.support import SIDES


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("block", list(itertools.product(SIDES, SIDES)), ids=str)
def test_every_cut_has_whole_warpgroups_and_fits_shared_memory(block, dtype):
    layer = SparseLayer((1024, 2048), block, 8, -1, dtype)
    shape, space = shape_of(block), list(search_space(layer))
    assert {shape.height, shape.width} == set(block)
    assert len(space) == len(set(space))
    for tiles in space:
        tall = tiles.n_together * shape.height
        assert tall % ROWS == 0
        assert tall <= 256
        # Blocks that are computed together lie in one block column of dW, which a turned block's
        # rows run along.
        assert tiles.n_together == 1 or not shape.is_swapped
        ring = tiles.stages * (tall + shape.width) * DEPTH_BYTES
        assert ring + tall * shape.width * 4 < launch.SHARED_MEMORY_BYTES


@pytest.mark.parametrize(
    ("programs", "n_groups", "n_shares"),
    [(132, 25, 5), (132, 132, 1), (132, 500, 1), (1056, 8, 64)],
)
def test_programs_are_as_many_as_asked_at_most_unless_there_are_more_groups(
    programs, n_groups, n_shares
):
    per_share = GradientTiles(1, 4, programs).per_share(64, n_groups)
    assert -(-64 // per_share) == n_shares
    assert n_groups * n_shares <= max(programs, n_groups)
