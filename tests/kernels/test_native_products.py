"""The native products of blocks that no vector and no tile fits, against float64 NumPy."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
import reference_mlp
from native import needs_native
from native_operands import float64, kernel_shape, products, random_ids

from pallas_kernels import SparseLayer
from pallas_kernels.layout import dense_mask

pytestmark = needs_native


BLOCKS = ((1, 1), (1, 8), (8, 1), (4, 8), (3, 5), (24, 40))
"""Blocks `(rows, cols)`, few of which any vector or tile fits."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block[0]}x{block[1]}")
def test_small_and_odd_blocks_are_computed_natively_and_right(block, axis, dtype):
    """They are the ones that engine `cpu` may leave to another."""
    rng, shape = np.random.default_rng(0), kernel_shape(block)
    n_in, n_out = shape
    batch, channels = ((37,), ()) if axis == -1 else ((3,), (7,))
    kept = random_ids(rng, shape, block)
    layer = SparseLayer(shape, block, len(kept), axis, dtype)
    x, dy, kernel, bias = (
        jnp.asarray(rng.normal(size=size), dtype)
        for size in ((*batch, n_in, *channels), (*batch, n_out, *channels), shape, n_out)
    )
    found = products(layer, x, dy, kernel, bias, kept)
    mask = np.asarray(dense_mask(kept, shape, block))
    letters = {-1: ("ni", "no"), -2: ("nic", "noc")}[axis]
    masked, wide_bias = float64(kernel) * mask, float64(bias)[(..., *(None for _ in channels))]

    def in_float64(change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
        a, b, w = change(float64(x)), change(float64(dy)), change(masked)
        left, right = letters
        return [
            np.einsum(f"{left},io->{right}", a, w) + change(wide_bias),
            np.einsum(f"{right},io->{left}", b, w),
            np.einsum(f"{left},{right}->io", a, b) * mask,
            np.einsum(f"{right}->o", b),
        ]

    values, masses = in_float64(np.asarray), in_float64(np.abs)
    for name, got, value, mass in zip(("y", "dx", "dW", "db"), found, values, masses, strict=True):
        assert got.dtype == jnp.dtype(dtype)
        reference_mlp.assert_near(got, (value, mass), reference_mlp.share(dtype, 120), name)
    np.testing.assert_array_equal(np.asarray(found[2])[~mask], 0)
