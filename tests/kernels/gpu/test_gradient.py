"""Kernel gradients whose rows are shared among programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_products import AXES, EPS, normal

from pallas_kernels import ENGINES, SparseLayer
from pallas_kernels.layout import dense_mask
from pallas_kernels.triton.configurations import GradientTiles
from pallas_kernels.tuning import forced


@pytest.mark.parametrize("programs", [1, 24, 10_000])
@AXES
def test_shares_of_rows_add_up_to_the_whole(axis, programs):
    shape = (1, 1000) if axis == -1 else (7, 90)
    x, dy = (normal(shape[0], shape[1], n, seed=n) for n in (32, 64))
    layer = SparseLayer((32, 64), (32, 16), 3, axis, "float32")
    kept = jnp.asarray([0, 2, 3], jnp.int32)
    turned = (x, dy) if axis == -1 else (x.swapaxes(1, 2), dy.swapaxes(1, 2))

    @jax.jit
    def call(x, dy):
        with forced(GradientTiles(64, warps=4, stages=3, programs=programs)):
            return ENGINES["triton"].kernel_gradient(x, dy, kept, layer)

    rows, columns = (np.asarray(a, np.float64).reshape(-1, a.shape[-1]) for a in (x, dy))
    expected = rows.T @ columns
    tolerance = 4 * EPS * np.sqrt(len(rows)) * np.sqrt((rows**2).T @ columns**2)
    mask = np.asarray(dense_mask(kept, layer.kernel_shape, layer.block))
    found = np.asarray(call(*turned))
    np.testing.assert_array_equal(found[~mask], 0)
    np.testing.assert_array_less(np.abs(found - expected)[mask], tolerance[mask])
