"""How panels are cut for shared memory."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import SparseLayer
from pallas_kernels.lists import list_columns
from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.product_tiles import (
    ROWS,
    Product,
    Tiles,
    needed_blocks,
    product_of,
    search_space,
    steps_of_ranks,
)
from pallas_kernels.tensor_cores import SIDES


def square(side: int, n_in: int, n_out: int, ratio: float = 0.8, n_rows: int = 8192) -> Product:
    """The forward product of a bfloat16 layer with square blocks."""
    n_kept = math.ceil((n_in // side) * (n_out // side) * (1 - ratio))
    return product_of(
        SparseLayer((n_in, n_out), (side, side), n_kept, -1, "bfloat16"), n_rows, transposed=False
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("rows", [1, 100, 999])
def test_every_cut_covers_the_panel_and_fits_shared_memory_and_registers(dtype, rows):
    size = jnp.dtype(dtype).itemsize
    for width, depth, n in itertools.product(SIDES, SIDES, (128, 768, 3072, 16384)):
        product = Product(width, depth, 1024 // width, n // depth, 8, dtype, rows)
        space = list(search_space(product, launch.SHARED_MEMORY_BYTES))
        assert len(space) == len(set(space))
        for tiles in space:
            assert tiles.rows * tiles.abreast == tiles.n_compute * ROWS
            panel = min(2, tiles.pieces) * tiles.blocks * tiles.rows * depth
            ring = tiles.stages * tiles.abreast * width * depth
            staging = tiles.n_compute * ROWS * width
            assert (panel + ring + staging) * size < launch.SHARED_MEMORY_BYTES
            assert tiles.pieces * tiles.blocks >= n // depth > (tiles.pieces - 1) * tiles.blocks
            assert tiles.pieces == 1 or tiles.blocks <= 32
            assert tiles.stages >= 2
            # Of a block each program of a cluster loads whole tiles of rows.
            assert min(width, depth) // launch.TILE_ROWS % tiles.cluster == 0
            # Of a thread's registers, the sums of 64 rows take one for every two columns; the
            # multiprocessor has 512 for a thread of each warpgroup, and one copies with 40 of them.
            registers = min(255, (512 - 40) // tiles.n_compute)
            assert tiles.lines * width // 2 <= 0.86 * registers


def test_neither_warpgroups_nor_programs_without_rows_or_columns_are_a_way_to_cut():
    for rows, most in ((64, 1), (65, 2), (128, 2), (129, 4), (1024, 16)):
        space = list(search_space(square(32, 256, 256, n_rows=rows), launch.SHARED_MEMORY_BYTES))
        assert max(tiles.rows * tiles.cluster for tiles in space) == most * ROWS
        assert max(tiles.abreast for tiles in space) == 4
    few = square(32, 256, 64)
    assert {t.group for t in search_space(few, launch.SHARED_MEMORY_BYTES)} == {1, 2}


def test_a_group_of_columns_needs_the_blocks_that_any_of_them_has():
    kept = jnp.asarray([0, 3, 4, 6, 9, 10, 13, 14], jnp.int32)  # of a grid of 6x3
    lists = list_columns(kept, (6, 3))
    tiles = Tiles(n_compute=1, abreast=1, cluster=1, pieces=2, blocks=4, lines=2, stages=2)
    needed = np.asarray(needed_blocks(lists, tiles))
    # Columns 0 and 1 have the blocks 0 to 3 of the first piece and 4, the first, of the second.
    assert needed.tolist() == [0b1111, 0b0001, 0b0000, 0b0001]


def test_a_piece_may_have_as_many_blocks_as_a_number_has_bits():
    lists = list_columns(jnp.asarray([0, 31, 32, 39], jnp.int32), (40, 1))
    tiles = Tiles(n_compute=1, abreast=1, cluster=1, pieces=2, blocks=32, lines=1, stages=2)
    needed = np.asarray(needed_blocks(lists, tiles)).view(np.uint32)
    assert needed.tolist() == [1 | 1 << 31, 1 | 1 << 7]


@pytest.mark.parametrize(("pieces", "abreast"), [(1, 2), (2, 2), (2, 4)])
def test_columns_abreast_take_the_steps_of_the_longest(pieces, abreast):
    grid = np.random.default_rng(0).uniform(size=(6, 5)) < 0.5
    lists = list_columns(jnp.asarray(np.flatnonzero(grid), jnp.int32), (6, 5))
    tiles = Tiles(4, abreast, 1, pieces, 6 // pieces, lines=1, stages=2)
    steps = np.asarray(steps_of_ranks(lists, tiles)).reshape(-1, pieces)
    lengths = grid.reshape(pieces, 6 // pieces, 5).sum(axis=1).T
    wanted = [lengths[i : i + abreast].max(axis=0) for i in range(0, 5, abreast)]
    np.testing.assert_array_equal(steps, wanted)


def test_the_barriers_have_their_room_in_shared_memory():
    panel, block = (launch.panel_bytes(shape, "bfloat16") for shape in ((1, 64, 64), (64, 64)))
    least = panel + 2 * block + block + launch.BARRIERS_BYTES
    product = Product(64, 64, 1, 1, 1, "bfloat16", 64)
    assert {tiles.stages for tiles in search_space(product, least)} == {2}
    assert not list(search_space(product, least - 1))
