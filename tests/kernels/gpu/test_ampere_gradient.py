"""Kernel gradients on Ampere, with blocks computed together and rows in shares."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_ampere import assert_rounded, ids, problem
from test_product_program import INTERPRETED
from test_products import normal

from pallas_kernels.mosaic import ampere_gradient


@INTERPRETED
@pytest.mark.parametrize(
    ("block", "rows"),
    [
        ((32, 16), 300),
        ((64, 32), 500),
        pytest.param((16, 64), 60, marks=pytest.mark.exhaustive),
        pytest.param((128, 128), 200, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_shares_of_rows_add_up_to_the_gradient_of_the_kept_blocks(block, rows, monkeypatch):
    layer, mask = problem(block, 5 * block[1], 3 * block[0], 0.4)
    monkeypatch.setattr(ampere_gradient, "PROGRAMS", 2 * layer.n_kept)
    x = normal(rows, layer.kernel_shape[0], dtype=jnp.bfloat16)
    dy = normal(rows, layer.kernel_shape[1], dtype=jnp.bfloat16, seed=1)
    found = ampere_gradient.kernel_gradient(x, dy, ids(layer, mask), layer, interpret=True)
    a, b = (np.asarray(v).astype(np.float64) for v in (x, dy))
    assert_rounded(found, a.T @ b * mask, (a**2).T @ b**2 * mask, rows)
