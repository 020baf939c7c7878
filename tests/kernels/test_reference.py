"""The engine that defines the others: masked products against float64 NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import Reference, SparseLayer

IN, OUT, CHANNELS, BLOCK = 6, 8, 3, (4, 2)
KEPT = np.array([0, 3, 4], np.int32)


@pytest.fixture(scope="module")
def mask() -> np.ndarray:
    grid = np.zeros((IN // BLOCK[1], OUT // BLOCK[0]), bool)
    grid.flat[KEPT] = True
    return np.kron(grid, np.ones((BLOCK[1], BLOCK[0]), bool))


@pytest.fixture(params=[-1, -2], ids=["features", "tokens"])
def layer(request) -> SparseLayer:
    return SparseLayer((IN, OUT), BLOCK, len(KEPT), request.param, "float32")


def test_the_reference_multiplies_by_the_masked_kernel_and_masks_its_gradient(layer, mask):
    rng = np.random.default_rng(1)
    x, dy = rng.normal(size=(4, IN)), rng.normal(size=(4, OUT))
    kernel, bias = rng.normal(size=(IN, OUT)), rng.normal(size=OUT)
    expected = (x @ (kernel * mask) + bias, dy @ (kernel * mask).T, (x.T @ dy) * mask)
    turn = layer.axis == -2
    x32, dy32 = (jnp.asarray(a.T if turn else a, jnp.float32) for a in (x, dy))
    w32, b32 = jnp.asarray(kernel, jnp.float32), jnp.asarray(bias, jnp.float32)
    reference, kept = Reference(), jnp.asarray(KEPT)
    y = reference.product(x32, w32, b32, kept, layer)
    dx = reference.input_gradient(dy32, w32, kept, layer)
    dw = reference.kernel_gradient(x32, dy32, kept, layer)
    actual = (y.T if turn else y, dx.T if turn else dx, dw)
    # Sums of at most 9 terms of magnitude up to about 4 x 3, inputs rounded to float32.
    tolerance = 4 * np.finfo(np.float32).eps * np.sqrt(9) * 12
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=tolerance)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_the_reference_runs_everywhere(layer, platform):
    assert Reference().reason_against(layer, platform) is None
