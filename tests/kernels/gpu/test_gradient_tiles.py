"""How the kernel's gradient is cut for Hopper."""

import itertools

import pytest

from pallas_kernels import SparseLayer
from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.gradient_tiles import (
    DEPTH_BYTES,
    MOST_STAGED,
    ROWS,
    GradientTiles,
    search_space,
    shape_of,
)
from pallas_kernels.tensor_cores import SIDES


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("block", list(itertools.product(SIDES, SIDES)), ids=str)
def test_every_cut_has_whole_warpgroups_and_fits_shared_memory(block, dtype):
    layer = SparseLayer((1024, 2048), block, 8, -1, dtype)
    space = list(search_space(layer))
    assert len(space) == len(set(space))
    # Both ways where both sides may be the rows; else the one whose side fills them.
    sides = {tiles.by_rows for tiles in space}
    heights = {by_rows: shape_of(layer, by_rows=by_rows).height for by_rows in (False, True)}
    filled = {by_rows for by_rows, height in heights.items() if height >= ROWS}
    assert sides == (filled or {False, True})
    for tiles in space:
        shape = shape_of(layer, by_rows=tiles.by_rows)
        assert (shape.height, shape.width) == (block if shape.is_turned else block[::-1])
        assert shape.is_turned <= tiles.by_rows
        tall = tiles.n_together * shape.height
        assert tall % ROWS == 0
        assert tall <= 256
        ring = tiles.stages * (tiles.n_together * shape.own + shape.shared) * DEPTH_BYTES
        staging = min(tall, MOST_STAGED * ROWS) * shape.width * 4
        assert ring + staging < launch.SHARED_MEMORY_BYTES


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
