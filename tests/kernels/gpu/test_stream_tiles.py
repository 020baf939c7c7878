"""How products are cut into tiles and steps."""

import itertools

import pytest
from test_product_tiles import square

from pallas_kernels.mosaic import launch, stream_tiles
from pallas_kernels.mosaic.product_tiles import Product
from pallas_kernels.mosaic.stream_tiles import (
    STAGES,
    StreamTiles,
    by_cost,
    search_space,
    seconds,
    step_depth,
    tiles_of,
    with_hidden_units,
)

SIDES = (16, 32, 64, 128)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("block", list(itertools.product(SIDES, SIDES)), ids=str)
def test_every_cut_fits_shared_memory_and_registers_with_as_long_a_ring_as_fits(block, dtype):
    width, depth = block
    product = Product(width, depth, 8, 16, 24, dtype, 8192)
    size = 4 if dtype == "float32" else 2
    space = search_space(product, launch.SHARED_MEMORY_BYTES)
    assert len(space) == len(set(space)) > 1
    for tiles in space:
        step = (tiles.rows + width) * step_depth(depth, dtype) * size
        staging = tiles.n_compute * tiles.n_staged * 64 * width * size
        assert tiles.stages * step + staging < launch.SHARED_MEMORY_BYTES
        longer = min((n for n in STAGES if n > tiles.stages), default=None)
        if longer is not None:
            assert longer * step + staging + 2048 > launch.SHARED_MEMORY_BYTES
        assert tiles.tall * width // 2 < launch.registers(tiles.n_compute)
        own = with_hidden_units(product, tiles)
        step = (own.rows + width) * step_depth(depth, dtype) * size
        staging = own.n_compute * own.tall * 64 * width * size
        assert own.stages * step + staging < launch.SHARED_MEMORY_BYTES
        assert own.tall * width <= 128


def test_a_block_is_multiplied_in_steps_of_128_bytes_of_each_row():
    assert [step_depth(n, "bfloat16") for n in (16, 64, 128)] == [16, 64, 64]
    assert [step_depth(n, "float32") for n in (16, 64, 128)] == [16, 32, 32]


def test_few_rows_are_not_cut_into_tiles_that_are_mostly_empty():
    small = square(32, 64, 256, n_rows=64)
    assert {tiles.rows for tiles in search_space(small, launch.SHARED_MEMORY_BYTES)} == {64}


def test_what_no_cut_makes_fit_is_an_error_with_the_bytes():
    product = Product(128, 128, 8, 4, 8, "float32", 999)
    with pytest.raises(ValueError, match="blocks 128x128 of float32 do not fit 50000 bytes"):
        tiles_of(product, 50_000)


def test_every_cut_is_ranked_by_its_time_which_loads_and_tensor_cores_bound():
    for side, shape in itertools.product((32, 64, 128), ((384, 1536), (1024, 4096), (4096, 1024))):
        product = square(side, *shape)
        ranked = by_cost(product)
        assert set(ranked) == set(search_space(product, launch.SHARED_MEMORY_BYTES))
        times = [seconds(product, tiles) for tiles in ranked]
        assert times == sorted(times)
        assert tiles_of(product) == ranked[0]
        flops = 2 * product.n_rows * product.n_kept * side * side
        for tiles in ranked:
            n_tiles = tiles.n_row_tiles(product.n_rows)
            loaded = n_tiles * product.n_kept * side * (tiles.rows + side) * 2
            least = max(flops / 7.8e14, loaded / stream_tiles.CACHE_BYTES)
            assert seconds(product, tiles) >= 0.99 * least


def test_there_is_a_program_for_each_multiprocessor_or_tile():
    product = square(64, 1024, 4096)
    assert StreamTiles(4, 1, 1, 4).n_programs(product) == launch.multiprocessors()
    few = square(64, 64, 256, n_rows=512)
    assert StreamTiles(4, 1, 1, 4).n_programs(few) == 2 * 4
    # Teams have tiles of their own.
    assert StreamTiles(4, 2, 2, 4).rows == StreamTiles(4, 1, 1, 4).rows == 256
