"""How the kernel's gradient is cut for Hopper."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import SparseLayer
from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.engine import SIDES
from pallas_kernels.mosaic.gradient_tiles import (
    DEPTH_BYTES,
    ROWS,
    gradient_tiles_of,
    search_space,
    shape_of,
    step_cost,
)
from pallas_kernels.mosaic.groups import group


def square(side: int, n_in: int, n_out: int, dtype: str = "bfloat16") -> SparseLayer:
    n_kept = math.ceil((n_in // side) * (n_out // side) * 0.2)
    return SparseLayer((n_in, n_out), (side, side), n_kept, -1, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("block", list(itertools.product(SIDES, SIDES)), ids=str)
def test_every_cut_has_whole_warpgroups_and_fits_shared_memory(block, dtype):
    layer = SparseLayer((1024, 2048), block, 8, -1, dtype)
    shape, space = shape_of(block), list(search_space(layer))
    assert {shape.height, shape.width} == set(block)
    assert gradient_tiles_of(layer) in space
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


@pytest.mark.parametrize("n_together", [2, 4, 8])
def test_the_cost_counts_the_groups_that_blocks_kept_at_random_make(n_together):
    """Within the spread of a mask: the last group of a column is half empty in the mean."""
    layer = square(16, 1024, 4096)
    blocks = np.random.default_rng(0).permutation(64 * 256)[: layer.n_kept]
    groups = group(jnp.asarray(np.sort(blocks), jnp.int32), (64, 256), n_together)
    n_groups = int((np.asarray(groups.column) >= 0).sum())
    loaded = n_groups * (n_together + 1) * 16 * 2
    assert step_cost(layer, n_together) == pytest.approx(loaded, rel=0.02)


def test_large_blocks_are_computed_together_where_columns_are_long():
    assert gradient_tiles_of(square(64, 256, 1024)).n_together == 1
    assert gradient_tiles_of(square(64, 4096, 16384)).n_together == 4
    assert gradient_tiles_of(square(128, 4096, 16384)).n_together == 2
