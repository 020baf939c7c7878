"""What products of panels cost on paper."""

import itertools

import numpy as np
import pytest
from test_product_tiles import square

from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.launch import H200_MULTIPROCESSORS
from pallas_kernels.mosaic.product_cost import (
    COPY_SECONDS,
    FLOPS,
    in_waves,
    loaded_bytes,
    steps_of,
)
from pallas_kernels.mosaic.product_tiles import ROWS, Product, Tiles, search_space


@pytest.mark.parametrize(
    ("product", "tiles"),
    [
        (square(64, 384, 1536), Tiles(2, 1, 1, 1, 6, 1, 8)),
        (square(64, 1024, 4096), Tiles(2, 1, 1, 4, 4, 4, 8)),
        (square(64, 1024, 4096), Tiles(4, 2, 4, 4, 4, 2, 8)),
        (square(32, 1024, 4096), Tiles(4, 4, 2, 1, 32, 1, 8)),
        (square(128, 4096, 1024), Tiles(4, 1, 1, 32, 1, 1, 2)),
    ],
    ids=["whole", "in pieces", "abreast in pieces", "abreast", "a block at a time"],
)
def test_loads_are_those_of_a_walk_through_the_programs(product: Product, tiles: Tiles):
    """On a grid of blocks kept at random, counted as the programs load them."""
    shape = (product.n_blocks, product.n_lines)
    ids = np.random.default_rng(0).permutation(shape[0] * shape[1])[: product.n_kept]
    grid = np.zeros(shape, bool)
    grid.flat[ids] = True
    counted = 0.0
    for number in range(n_shares := tiles.n_shares(product)):
        panel_block = tiles.rows * product.depth
        counted += grid.shape[0] * panel_block if tiles.pieces == 1 else 0
        for first in range(number * tiles.group, product.n_lines, n_shares * tiles.group):
            group = grid[:, first : first + tiles.group]
            counted += group.sum() * product.width * product.depth / tiles.cluster
            if tiles.pieces > 1:
                counted += group.any(axis=1).sum() * panel_block
    counted *= -(-product.n_rows // tiles.rows) * 2
    assert loaded_bytes(product, tiles) == pytest.approx(counted, rel=0.02)


@pytest.mark.parametrize("side", [32, 64, 128])
def test_steps_take_no_less_than_tensor_cores_and_copies_need(side):
    product = square(side, 1024, 4096)
    for tiles in itertools.islice(search_space(product, launch.SHARED_MEMORY_BYTES), 0, None, 9):
        n_blocks = product.n_blocks if tiles.pieces == 1 else tiles.blocks
        step, longest = steps_of(product, tiles, n_blocks)
        assert 0 < longest <= n_blocks
        flops = 2 * tiles.n_compute * ROWS * side * side * n_blocks * 0.2 / longest
        assert step >= 0.99 * flops * H200_MULTIPROCESSORS / FLOPS[2]
        assert step >= COPY_SECONDS / (tiles.stages - 1)


def test_a_last_wave_of_few_programs_takes_as_long_as_a_whole_one():
    full, more = (in_waves(n, 1, 0.0, 1e-5) for n in (132, 133))
    assert more == pytest.approx(2 * full)


def test_programs_that_load_weights_together_load_less_and_panels_as_before():
    product = square(32, 1024, 4096)
    alone, together = (loaded_bytes(product, Tiles(4, 4, n, 1, 32, 1, 8)) for n in (1, 4))
    panels = product.n_rows * 1024 * 2
    assert together - panels == pytest.approx((alone - panels) / 4)
