"""Programs of products on Hopper whose panels and rings are used many times."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_products import EPS, normal

from pallas_kernels import Reference, SparseLayer
from pallas_kernels.lists import list_columns, list_rows
from pallas_kernels.mosaic import launch, products
from pallas_kernels.mosaic.product_tiles import Tiles, needed_blocks

INTERPRETED = pytest.mark.skipif(
    launch.missing(interpret=True) is not None, reason=str(launch.missing(interpret=True))
)


EXHAUSTIVE = pytest.mark.exhaustive
IN_PIECES = Tiles(2, 1, 1, pieces=6, blocks=2, lines=4, stages=2)
"""Both warpgroups have rows; the fifth column of blocks is alone in its group of four, and the last
of the pieces has one block alone."""
ABREAST = Tiles(4, 2, 2, pieces=6, blocks=2, lines=2, stages=2)
"""Two columns beside each other and two warpgroups above each other, and the same again in a second
program, whose last rows lie behind those of x."""
WHOLE = Tiles(2, 2, 2, pieces=1, blocks=11, lines=1, stages=4)
"""The second program has no rows at all, and loads its part of the weights nevertheless."""


@INTERPRETED
@pytest.mark.parametrize(
    ("tiles", "rows", "transposed"),
    [
        (IN_PIECES, 70, False),
        (ABREAST, 140, True),
        (WHOLE, 60, False),
        pytest.param(IN_PIECES, 70, True, marks=EXHAUSTIVE),
        pytest.param(ABREAST, 140, False, marks=EXHAUSTIVE),
        pytest.param(WHOLE, 60, True, marks=EXHAUSTIVE),
        pytest.param(Tiles(1, 1, 4, 1, 11, 1, 2), 150, False, marks=EXHAUSTIVE),
        pytest.param(Tiles(4, 4, 1, 3, 4, 1, 4), 70, True, marks=EXHAUSTIVE),
    ],
    ids=str,
)
def test_a_panel_in_pieces_with_a_short_ring_gives_the_same_sums(tiles, rows, transposed):
    n, m, block = 176, 80, (16, 16)
    shape = (m, n) if transposed else (n, m)
    grid = (shape[0] // 16, shape[1] // 16)
    blocks = np.random.default_rng(0).uniform(size=grid) < 0.3
    if transposed:
        blocks[1] = False
    else:
        blocks[:, 1] = False
    kept = jnp.asarray(np.flatnonzero(blocks), jnp.int32)
    layer = SparseLayer(shape, block, kept.size, -1, "bfloat16")
    lists = (list_rows if transposed else list_columns)(kept, grid)
    if tiles.pieces > 1:
        assert {0b00, 0b11} < set(np.asarray(needed_blocks(lists, tiles, lists.order)).tolist()), (
            "some pieces come in part, some not at all"
        )
    x, w = normal(rows, n, dtype=jnp.bfloat16), normal(*shape, dtype=jnp.bfloat16, seed=1)
    bias = None if transposed else normal(m, dtype=jnp.bfloat16, seed=2)
    found = products.multiply(x, w, bias, kept, layer, tiles, transposed=transposed, interpret=True)
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
