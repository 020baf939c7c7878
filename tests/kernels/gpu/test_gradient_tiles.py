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
    n_groups = int((np.asarray(groups.length) > 0).sum())
    loaded = (layer.n_kept + n_groups) * 16 * 2
    assert step_cost(layer, n_together) == pytest.approx(loaded, rel=0.02)


def test_the_cut_that_costs_the_least_is_taken():
    for side, shape in itertools.product((32, 64, 128), ((256, 1024), (1024, 4096))):
        layer = square(side, *shape)
        costs = [step_cost(layer, tiles.n_together) for tiles in search_space(layer)]
        assert step_cost(layer, gradient_tiles_of(layer).n_together) == min(costs)


def test_blocks_computed_together_share_what_they_load_of_dy():
    layer = square(64, 4096, 16384)
    dense_column = layer.n_kept * (64 + 64 / 4) * 2
    assert step_cost(layer, 4) == pytest.approx(dense_column, rel=0.05)
    assert step_cost(layer, 1) == layer.n_kept * (64 + 64) * 2
