"""What is kept of images: blocks of pixels and channels, and the means of windows of pixels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import ENGINES, dense
from sparsemlp import ActivationPooling, ActivationPruning
from sparsemlp.activations import PrunedActivation
from sparsemlp.errors import InputError
from sparsemlp.image_activations import PooledImage, compact_image, skips

REFERENCE = ENGINES["reference"]
EPS = np.finfo(np.float32).eps
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 6, 8)), jnp.float32)
DY = jnp.asarray(np.random.default_rng(1).normal(size=(2, 4, 6, 5)), jnp.float32)


def test_means_of_windows_of_pixels_channel_by_channel():
    kept = jax.jit(lambda x: compact_image(x, ActivationPooling((2, 3)), REFERENCE))(X)
    assert isinstance(kept, PooledImage)
    expected = np.float64(X).reshape(2, 2, 2, 2, 3, 8).mean(axis=(2, 4))
    np.testing.assert_allclose(kept.means, expected, atol=4 * EPS * np.abs(X).max())
    spread = np.repeat(np.repeat(kept.means, 2, axis=1), 3, axis=2)
    np.testing.assert_array_equal(kept.dense(), spread)
    found = kept.kernel_gradient(DY, ENGINES["reference"])
    product = np.float64(spread).reshape(-1, 8).T @ np.float64(DY).reshape(-1, 5)
    np.testing.assert_allclose(found, product, atol=4 * EPS * np.sqrt(48) * 10)


def test_blocks_of_pixels_and_channels():
    kept = compact_image(X, ActivationPruning((6, 4), 0.5), REFERENCE)
    assert isinstance(kept, PrunedActivation)
    assert kept.values.shape == (8, 6, 4)
    blocks = np.float64(X).reshape(8, 6, 2, 4)
    norms = np.sqrt(np.square(blocks).sum(axis=(1, 3)))
    largest = norms >= np.sort(norms.reshape(-1))[-8]
    expected = blocks * largest[:, None, :, None]
    np.testing.assert_array_equal(kept.dense().reshape(8, 6, 2, 4), np.float32(expected))


@pytest.mark.parametrize("rule", [ActivationPruning((4, 4), 0.0), ActivationPooling((1, 1))])
def test_a_rule_that_drops_nothing_keeps_the_images_themselves(rule):
    assert compact_image(X, rule, REFERENCE) is None


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (ActivationPooling((3, 2)), "pooling window 3x2 does not divide .* 4 pixels down % 3 = 1"),
        (ActivationPooling((2, 4)), "pooling window 2x4 .* 6 pixels across % 4 = 2.* is 3"),
        (ActivationPruning((5, 4), 0.5), "activation block 5x4 .* 48 rows"),
    ],
)
def test_what_does_not_divide_images_is_refused(rule, message):
    with pytest.raises(InputError, match=message):
        compact_image(X, rule, REFERENCE)


def test_which_products_are_smaller_than_dense():
    pooled = compact_image(X, ActivationPooling((2, 2)), REFERENCE)
    wide = compact_image(X, ActivationPruning((2, 4), 0.5), REFERENCE)
    narrow = compact_image(X, ActivationPruning((2, 2), 0.5), REFERENCE)
    assert pooled is not None
    assert wide is not None
    assert narrow is not None
    assert [skips(kept, ENGINES["cpu"]) for kept in (pooled, wide, narrow)] == [True, True, False]
    assert not any(skips(kept, ENGINES["reference"]) for kept in (pooled, wide, narrow))


def test_pooling_in_bfloat16_sums_in_float32():
    ones = jnp.ones((1, 32, 32, 1), jnp.bfloat16) * 1.0078125
    kept = compact_image(ones, ActivationPooling((32, 32)), REFERENCE)
    assert isinstance(kept, PooledImage)
    assert float(kept.means[0, 0, 0, 0]) == 1.0078125
    dy = jnp.ones((1, 32, 32, 1), jnp.bfloat16)
    dw = dense.kernel_gradient(ones, dy, -1)
    np.testing.assert_allclose(kept.kernel_gradient(dy, ENGINES["cpu"]), dw, rtol=0.01)


def test_means_of_float64_are_float64():
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 4, 4, 2)))
        kept = compact_image(x, ActivationPooling((2, 2)), ENGINES["reference"])
        assert isinstance(kept, PooledImage)
        expected = np.asarray(x).reshape(1, 2, 2, 2, 2, 2).mean(axis=(2, 4))
        np.testing.assert_allclose(kept.means, expected, rtol=1e-13, atol=1e-15)
