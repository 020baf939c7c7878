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
    space = list(search_space(layer))
    assert len(space) == len(set(space))
    # Both ways where both sides may be the rows; else the one whose side fills them.
    sides = {tiles.is_swapped for tiles in space}
    assert len(sides) == (1 if min(block) < ROWS <= max(block) else 2)
    for tiles in space:
        shape = shape_of(layer, is_swapped=tiles.is_swapped)
        assert (shape.height, shape.width) == (block if tiles.is_swapped else block[::-1])
        assert shape.height >= ROWS or max(block) < ROWS
        tall = tiles.n_together * shape.height
        assert tall % ROWS == 0
        assert tall <= 256
        ring = tiles.stages * (tall + shape.width) * DEPTH_BYTES
        assert ring + tall * shape.width * 4 < launch.SHARED_MEMORY_BYTES


@pytest.mark.parametrize(
    ("programs", "n_groups", "n_shares"),
    [(132, 25, 5), (132, 132, 1), (132, 500, 1), (1056, 8, 64)],
)
def test_programs_are_as_many_as_asked_at_most_unless_there_are_more_groups(
    programs, n_groups, n_shares
):
    per_share = GradientTiles(1, 4, programs, False).per_share(64, n_groups)
    assert -(-64 // per_share) == n_shares
    assert n_groups * n_shares <= max(programs, n_groups)
