"""How panels are cut for shared memory, and products whose panels and rings are used many times."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_products import EPS, normal

from pallas_kernels import Reference, SparseLayer
from pallas_kernels.layout import list_columns
from pallas_kernels.mosaic import launch, products
from pallas_kernels.mosaic.engine import SIDES

INTERPRETED = pytest.mark.skipif(
    launch.missing(interpret=True) is not None, reason=str(launch.missing(interpret=True))
)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_cut_covers_the_panel_and_fits_shared_memory_and_registers(dtype):
    size = jnp.dtype(dtype).itemsize
    for width, depth, n, rows in itertools.product(SIDES, SIDES, (128, 768, 3072, 16384), (1, 999)):
        tiles = products.tiles_of(width, depth, n // depth, dtype, rows, launch.SHARED_MEMORY_BYTES)
        height = tiles.n_compute * products.ROWS
        panel = min(2, tiles.pieces) * tiles.blocks * height * depth
        ring, staging = tiles.stages * width * depth, height * width
        assert (panel + ring + staging) * size < launch.SHARED_MEMORY_BYTES
        assert tiles.pieces * tiles.blocks >= n // depth > (tiles.pieces - 1) * tiles.blocks
        assert tiles.stages >= 2
        # Of 255 registers a thread, the sums of 64 rows take one for every two columns.
        assert tiles.lines * width // 2 <= 128


def test_what_no_cut_makes_fit_is_an_error_with_the_bytes():
    with pytest.raises(ValueError, match="blocks 128x128 of float32 do not fit 100000 bytes"):
        products.tiles_of(128, 128, 4, "float32", 999, 100_000)


def test_pieces_begin_where_their_first_block_would_lie():
    kept = jnp.asarray([0, 3, 4, 6, 9, 10, 13, 14], jnp.int32)  # of a grid of 6x3
    lists = list_columns(kept, (6, 3))
    tiles = products.Tiles(n_compute=1, pieces=2, blocks=4, lines=1, stages=2)
    starts = np.asarray(products.piece_starts(lists, tiles, 6)).reshape(3, 3)
    across = np.asarray(lists.across)
    pieces = [[across[a:b].tolist() for a, b in itertools.pairwise(line)] for line in starts]
    assert pieces == [[[0, 1, 2, 3], []], [[1, 3], [4]], [[], [4]]]


@INTERPRETED
@pytest.mark.parametrize(
    "transposed",
    [False, pytest.param(True, marks=pytest.mark.exhaustive)],
    ids=["product", "transposed"],
)
def test_a_panel_in_pieces_with_a_short_ring_gives_the_same_sums(transposed, monkeypatch):
    monkeypatch.setattr(products, "STAGES", (2,))
    monkeypatch.setattr(products, "RING_BYTES", range(1 << 20))
    n, m, block, memory = 176, 80, (16, 16), 23_552
    shape = (m, n) if transposed else (n, m)
    grid = (shape[0] // 16, shape[1] // 16)
    blocks = np.random.default_rng(0).uniform(size=grid) < 0.3
    if transposed:
        blocks[1] = False
    else:
        blocks[:, 1] = False
    kept = jnp.asarray(np.flatnonzero(blocks), jnp.int32)
    layer = SparseLayer(shape, block, kept.size, -1, "bfloat16")
    # Both warpgroups have rows; the fifth column of blocks is alone in its group of four.
    tiles = products.tiles_of(16, 16, 11, "bfloat16", 70, memory)
    # The last of the pieces has one block alone.
    assert tiles == products.Tiles(n_compute=2, pieces=6, blocks=2, lines=4, stages=2)
    x, w = normal(70, n, dtype=jnp.bfloat16), normal(*shape, dtype=jnp.bfloat16, seed=1)
    bias = None if transposed else normal(m, dtype=jnp.bfloat16, seed=2)
    found = products.multiply(
        x, w, bias, kept, layer, transposed=transposed, interpret=True, memory_bytes=memory
    )
    wide_x, wide_w = (a.astype(jnp.float32) for a in (x, w))
    with jax.default_matmul_precision("highest"):
        if transposed:
            want = Reference().input_gradient(wide_x, wide_w, kept, layer)
        else:
            assert bias is not None
            want = Reference().product(wide_x, wide_w, bias.astype(jnp.float32), kept, layer)
    # One rounding to bfloat16 of sums of up to 176 terms, which round in proportion to their size.
    scale = 4 * EPS * np.sqrt(n) * np.abs(want).max()
    np.testing.assert_allclose(
        np.asarray(found, np.float32), want, rtol=float(jnp.finfo(jnp.bfloat16).eps) / 2, atol=scale
    )
