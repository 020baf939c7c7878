"""What ways to cut a product cost on paper."""

import itertools

import numpy as np
import pytest
from test_product_tiles import square

from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.product_cost import by_cost, loaded_bytes, seconds, tiles_of
from pallas_kernels.mosaic.product_tiles import Product, Tiles, search_space


def test_what_no_cut_makes_fit_is_an_error_with_the_bytes():
    product = Product(128, 128, 8, 4, 8, "float32", 999)
    with pytest.raises(ValueError, match="blocks 128x128 of float32 do not fit 100000 bytes"):
        tiles_of(product, 100_000)


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


def test_the_cut_of_the_shortest_time_is_taken_and_every_one_is_ranked():
    for side, shape in itertools.product((32, 64, 128), ((384, 1536), (1024, 4096), (4096, 1024))):
        product = square(side, *shape)
        space = list(search_space(product, launch.SHARED_MEMORY_BYTES))
        ranked = by_cost(product)
        assert set(ranked) == set(space)
        times = [seconds(product, tiles) for tiles in ranked]
        assert times == sorted(times)
        assert tiles_of(product) == ranked[0]


@pytest.mark.parametrize("side", [32, 64, 128])
def test_no_time_is_shorter_than_loads_and_tensor_cores_allow(side):
    product = square(side, 1024, 4096)
    flops = 2 * product.n_rows * product.n_kept * side * side
    for tiles in by_cost(product):
        assert seconds(product, tiles) >= 0.999 * flops / 7.8e14
        assert seconds(product, tiles) >= loaded_bytes(product, tiles) / 5.5e12


def test_a_last_wave_of_few_programs_takes_as_long_as_a_whole_one():
    tiles = Tiles(4, 4, 2, 1, 32, 1, 8)
    full, more = (seconds(square(32, 1024, 4096, n_rows=n), tiles) for n in (132 * 64, 133 * 64))
    assert more == pytest.approx(2 * full)


def test_programs_that_load_weights_together_load_less_and_panels_as_before():
    product = square(32, 1024, 4096)
    alone, together = (loaded_bytes(product, Tiles(4, 4, n, 1, 32, 1, 8)) for n in (1, 4))
    panels = product.n_rows * 1024 * 2
    assert together - panels == pytest.approx((alone - panels) / 4)
