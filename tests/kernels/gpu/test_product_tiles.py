"""How panels are cut for shared memory."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.layout import list_columns
from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.engine import SIDES
from pallas_kernels.mosaic.product_tiles import ROWS, Tiles, piece_starts, tiles_of


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_cut_covers_the_panel_and_fits_shared_memory_and_registers(dtype):
    size = jnp.dtype(dtype).itemsize
    for width, depth, n, rows in itertools.product(SIDES, SIDES, (128, 768, 3072, 16384), (1, 999)):
        tiles = tiles_of(width, depth, n // depth, dtype, rows, launch.SHARED_MEMORY_BYTES)
        height = tiles.n_compute * ROWS
        panel = min(2, tiles.pieces) * tiles.blocks * height * depth
        ring, staging = tiles.stages * width * depth, height * width
        assert (panel + ring + staging) * size < launch.SHARED_MEMORY_BYTES
        assert tiles.pieces * tiles.blocks >= n // depth > (tiles.pieces - 1) * tiles.blocks
        assert tiles.stages >= 2
        # Of 255 registers a thread, the sums of 64 rows take one for every two columns.
        assert tiles.lines * width // 2 <= 128


def test_what_no_cut_makes_fit_is_an_error_with_the_bytes():
    with pytest.raises(ValueError, match="blocks 128x128 of float32 do not fit 100000 bytes"):
        tiles_of(128, 128, 4, "float32", 999, 100_000)


def test_pieces_begin_where_their_first_block_would_lie():
    kept = jnp.asarray([0, 3, 4, 6, 9, 10, 13, 14], jnp.int32)  # of a grid of 6x3
    lists = list_columns(kept, (6, 3))
    tiles = Tiles(n_compute=1, pieces=2, blocks=4, lines=1, stages=2)
    starts = np.asarray(piece_starts(lists, tiles, 6)).reshape(3, 3)
    across = np.asarray(lists.across)
    pieces = [[across[a:b].tolist() for a, b in itertools.pairwise(line)] for line in starts]
    assert pieces == [[[0, 1, 2, 3], []], [[1, 3], [4]], [[], [4]]]


def test_the_barriers_have_their_room_in_shared_memory():
    panel, block = (launch.panel_bytes(shape, "bfloat16") for shape in ((1, 64, 64), (64, 64)))
    least = panel + 2 * block + block + launch.BARRIERS_BYTES
    assert tiles_of(64, 64, 1, "bfloat16", 64, least).stages == 2
    with pytest.raises(ValueError, match="do not fit"):
        tiles_of(64, 64, 1, "bfloat16", 64, least - 1)
