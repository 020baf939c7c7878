"""Programs of products on Hopper whose panels and rings are used many times."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_products import EPS, normal

from pallas_kernels import Reference, SparseLayer
from pallas_kernels.layout import list_columns, list_rows
from pallas_kernels.mosaic import launch, products
from pallas_kernels.mosaic.product_tiles import Tiles, cut_into_pieces

INTERPRETED = pytest.mark.skipif(
    launch.missing(interpret=True) is not None, reason=str(launch.missing(interpret=True))
)


@INTERPRETED
@pytest.mark.parametrize(
    "transposed",
    [False, pytest.param(True, marks=pytest.mark.exhaustive)],
    ids=["product", "transposed"],
)
def test_a_panel_in_pieces_with_a_short_ring_gives_the_same_sums(transposed):
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
    # Both warpgroups have rows; the fifth column of blocks is alone in its group of four, and the
    # last of the pieces has one block alone.
    tiles = Tiles(n_compute=2, pieces=6, blocks=2, lines=4, stages=2)
    needed = cut_into_pieces(
        (list_rows if transposed else list_columns)(kept, grid), tiles, 11
    ).needed
    assert {0b00, 0b11} < set(np.asarray(needed).tolist()), (
        "some pieces come in part, some not at all"
    )
    x, w = normal(70, n, dtype=jnp.bfloat16), normal(*shape, dtype=jnp.bfloat16, seed=1)
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
