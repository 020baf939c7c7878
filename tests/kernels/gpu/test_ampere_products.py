"""Products on Ampere with many columns for each program."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_ampere import assert_rounded, ids, problem
from test_product_program import INTERPRETED
from test_products import normal

from pallas_kernels.mosaic import ampere_products
from pallas_kernels.mosaic.ampere_product_tiles import tiles_of

RESIDENT, STREAMED = 1 << 20, 48 << 10


@pytest.mark.thorough(after=2)
@INTERPRETED
@pytest.mark.parametrize(
    ("block", "rows", "memory"),
    [
        ((32, 16), 150, RESIDENT),
        ((16, 64), 70, STREAMED),
        pytest.param((64, 32), 5, STREAMED, marks=pytest.mark.exhaustive),
        pytest.param((128, 64), 64, RESIDENT, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
@pytest.mark.parametrize("transposed", [False, True], ids=["product", "transposed"])
def test_products_of_the_kept_blocks_with_many_columns_for_each_program(
    block, rows, memory, transposed, monkeypatch
):
    monkeypatch.setattr(ampere_products, "PROGRAMS", 2)
    n_in, n_out = 11 * block[1], 5 * block[0]
    layer, mask = problem(block, n_in, n_out, 0.6)
    width, depth = block[::-1] if transposed else block
    n_blocks = (n_out if transposed else n_in) // depth
    tiles = tiles_of(width, depth, n_blocks, rows, memory)
    assert tiles is not None
    if memory == STREAMED and not transposed:
        assert not tiles.is_resident
    n, m = (n_out, n_in) if transposed else (n_in, n_out)
    x, w = normal(rows, n, dtype=jnp.bfloat16), normal(n_in, n_out, dtype=jnp.bfloat16, seed=1)
    bias = None if transposed else normal(m, dtype=jnp.bfloat16, seed=2)
    found = ampere_products.multiply(
        x,
        w,
        bias,
        ids(layer, mask),
        layer,
        transposed=transposed,
        interpret=True,
        memory_bytes=memory,
    )
    a, b = np.asarray(x).astype(np.float64), np.asarray(w).astype(np.float64) * mask
    b = b.T if transposed else b
    c = 0.0 if bias is None else np.asarray(bias).astype(np.float64)
    assert_rounded(found, a @ b + c, a**2 @ b**2 + c**2, n)
