"""dW from the sums of all shares, as it lies in memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from simulated_hopper import simulated
from test_product_program import INTERPRETED
from test_products import normal

from pallas_kernels import SparseLayer
from pallas_kernels.layout import dense_mask
from pallas_kernels.lists import list_alike
from pallas_kernels.mosaic.gradient_sum import fits, sum_shares

__all__ = ["simulated"]

KEPT = jnp.asarray([2, 5, 7, 8], jnp.int32)
CASES = pytest.mark.parametrize(
    ("block", "dtype", "n_shares"),
    [
        ((64, 64), "bfloat16", 2),
        ((32, 128), "bfloat16", 3),
        ((128, 64), "bfloat16", 1),
        ((16, 64), "float32", 2),
        ((32, 32), "bfloat16", 2),
        ((128, 16), "bfloat16", 1),
    ],
    ids=str,
)


def check(block: tuple[int, int], dtype: str, n_shares: int) -> None:
    """Four blocks of nine, listed by rows and by columns, beside those of another kernel."""
    rows, cols = block
    layer = SparseLayer((3 * cols, 3 * rows), block, 4, -1, dtype)
    parts = normal(n_shares, 4, cols, rows)
    blocks = list_alike(jnp.stack([jnp.arange(4, dtype=jnp.int32), KEPT]), (3, 3))[1]
    rounded = np.asarray(jnp.sum(parts, axis=0).astype(dtype), np.float32)
    mask = np.asarray(dense_mask(KEPT, layer.kernel_shape, block))
    # By columns they are 7, 2, 5 and 8.
    for by_rows, order in ((True, [0, 1, 2, 3]), (False, [1, 2, 0, 3])):
        found = sum_shares(
            parts.reshape(-1, rows), blocks, layer, n_shares, by_rows=by_rows, interpret=True
        )
        assert found.dtype == jnp.dtype(dtype)
        want = np.zeros((3, 3, cols, rows), np.float32)
        for entry, number in zip(order, np.asarray(KEPT), strict=True):
            want[number // 3, number % 3] = rounded[entry]
        want = want.swapaxes(1, 2).reshape(layer.kernel_shape)
        np.testing.assert_allclose(np.asarray(found, np.float32), want, rtol=1e-6)
        np.testing.assert_array_equal(np.asarray(found)[~mask], 0)


@pytest.mark.thorough(after=2)
@INTERPRETED
@CASES
def test_shares_are_summed_before_they_are_rounded(block, dtype, n_shares):
    check(block, dtype, n_shares)


@pytest.mark.usefixtures("simulated")
@CASES
def test_a_simulated_hopper_waits_for_all_shares(block, dtype, n_shares):
    with jax.disable_jit():
        check(block, dtype, n_shares)


def test_many_shares_are_left_to_xla():
    layer = SparseLayer((128, 256), (64, 64), 3, -1, "bfloat16")
    assert fits(8, layer)
    assert not fits(9, layer)
    assert fits(16, SparseLayer((128, 256), (32, 64), 3, -1, "bfloat16"))
    small = SparseLayer((128, 256), (16, 16), 3, -1, "bfloat16")
    assert fits(8, small)
    assert not fits(9, small)
