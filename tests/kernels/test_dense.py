"""The dense products against float64 NumPy, along both axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import dense

IN, OUT, CHANNELS = 6, 5, 3
BATCHES = [(), (4,), (2, 4)]


def arrays(batch: tuple[int, ...], axis: int) -> tuple[np.ndarray, ...]:
    """Arrays x, kernel, bias, dy as float32; with axis -2 the channels come last."""
    rng = np.random.default_rng(0)
    channels = () if axis == -1 else (CHANNELS,)
    shapes = ((*batch, IN, *channels), (IN, OUT), (OUT,), (*batch, OUT, *channels))
    return tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)


def features_last(a: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(a, np.float64) if axis == -1 else np.swapaxes(a, -1, -2).astype(np.float64)


def close(actual: jax.Array, expected: np.ndarray, magnitude: np.ndarray, terms: int) -> None:
    """Compares a sum of `terms` products, whose absolute values add up to `magnitude`."""
    eps = float(jnp.finfo(actual.dtype).eps)
    assert actual.shape == expected.shape
    error = np.abs(np.asarray(actual, np.float64) - expected)
    assert np.all(error <= 2 * eps * np.sqrt(terms) * magnitude)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_the_products_equal_those_of_numpy(batch, axis):
    x, kernel, bias, dy = arrays(batch, axis)
    x64, dy64 = features_last(x, axis), features_last(dy, axis)
    w64 = kernel.astype(np.float64)
    rows_x, rows_dy = x64.reshape(-1, IN), dy64.reshape(-1, OUT)

    def back(a: np.ndarray) -> np.ndarray:
        return a if axis == -1 else np.swapaxes(a, -1, -2)

    y = dense.product(jnp.asarray(x), jnp.asarray(kernel), jnp.asarray(bias), axis)
    close(y, back(x64 @ w64 + bias), back(abs(x64) @ abs(w64) + abs(bias)), IN + 1)
    dx = dense.input_gradient(jnp.asarray(dy), jnp.asarray(kernel), axis)
    close(dx, back(dy64 @ w64.T), back(abs(dy64) @ abs(w64.T)), OUT)
    dw = dense.kernel_gradient(jnp.asarray(x), jnp.asarray(dy), axis)
    close(dw, rows_x.T @ rows_dy, abs(rows_x.T) @ abs(rows_dy), len(rows_x))
    db = dense.bias_gradient(jnp.asarray(dy), axis)
    close(db, rows_dy.sum(0), abs(rows_dy).sum(0), len(rows_dy))


@pytest.mark.parametrize("axis", [-1, -2])
def test_the_hand_written_gradients_are_those_of_the_product(axis):
    x, kernel, bias, dy = (jnp.asarray(a) for a in arrays((2, 4), axis))
    _, pull = jax.vjp(lambda x, w, b: dense.product(x, w, b, axis), x, kernel, bias)
    dx, dw, db = pull(dy)
    eps, terms = np.finfo(np.float32).eps, 2 * 4 * CHANNELS
    tolerance = 4 * eps * np.sqrt(terms) * 4
    np.testing.assert_allclose(dense.input_gradient(dy, kernel, axis), dx, atol=tolerance)
    np.testing.assert_allclose(dense.kernel_gradient(x, dy, axis), dw, atol=tolerance)
    np.testing.assert_allclose(dense.bias_gradient(dy, axis), db, atol=tolerance)


def test_bfloat16_products_are_summed_in_float32():
    n = 512
    # 256 + 1 is 256 in bfloat16: a bfloat16 sum would stay at 256 of the 511 + 256.
    x = jnp.ones((1, n), jnp.bfloat16).at[0, 0].set(256)
    ones = jnp.ones((n, 1), jnp.bfloat16)
    expected = jnp.asarray(256 + n - 1, jnp.bfloat16)
    for y in (
        dense.product(x, ones, None, -1),
        dense.product(x.T, ones, None, -2),
        dense.input_gradient(x, ones.T, -1),
        dense.kernel_gradient(x.T, ones, -1),
        dense.kernel_gradient(x, ones.T, -2),
        dense.bias_gradient(x.T, -1),
    ):
        assert y.dtype == jnp.bfloat16
        np.testing.assert_array_equal(y.astype(jnp.float32).ravel(), float(expected))


@pytest.mark.parametrize("n_channels", [1, 8, 40])
@pytest.mark.parametrize("mapped", [None, (0, None), (None, 0), (0, 0)])
def test_compiled_bfloat16_products_are_summed_in_float32(mapped, n_channels):
    """Also where XLA turns a product around: with one sample, and where one operand is mapped."""
    n = 1024

    def total(product, *shapes):
        parts = [
            jnp.ones((2, *shape) if mapped and at == 0 else shape, jnp.bfloat16)
            for shape, at in zip(shapes, mapped or (None, None), strict=True)
        ]
        y = jax.jit(jax.vmap(product, mapped) if mapped else product)(*parts)
        assert y.dtype == jnp.bfloat16
        np.testing.assert_array_equal(y.astype(jnp.float32), n)

    total(lambda x, w: dense.product(x, w, None, -2), (n, n_channels), (n, 64))
    total(lambda dy, w: dense.input_gradient(dy, w, -2), (n, n_channels), (64, n))
    total(lambda x, dy: dense.kernel_gradient(x, dy, -2), (64, n), (n_channels, n))
    total(lambda x, w: dense.product(x, w, None, -1), (n_channels, n), (n, 64))
    total(lambda dy, w: dense.input_gradient(dy, w, -1), (n_channels, n), (64, n))
    total(lambda x, dy: dense.kernel_gradient(x, dy, -1), (n, n_channels), (n, 64))


def test_no_channels_along_the_tokens_are_no_numbers():
    assert dense.product(jnp.ones((3, 4, 0)), jnp.ones((4, 6)), None, -2).shape == (3, 6, 0)
