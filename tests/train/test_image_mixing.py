"""The weights of mixup and CutMix: their distributions, and the shape of what is pasted."""

import functools
import math

import jax
import numpy as np
import pytest

from sparsemlp.train.image_mixing import Mixing, mixing_weight

SIZE = (8, 6)
EPS = float(np.finfo(np.float32).eps)


@functools.cache
def compiled(size, mixing):
    draw = functools.partial(mixing_weight, size=size, mixing=mixing)
    return jax.jit(lambda keys: jax.lax.map(draw, keys))


def draws(
    n: int, size: tuple[int, int] = SIZE, /, **changes: float
) -> tuple[np.ndarray, np.ndarray]:
    """Weights `[n, height, width]` and lambdas `[n]`."""
    mixing = Mixing(0.0, 0.0, probability=1.0, switch_probability=0.5)._replace(**changes)
    keys = jax.random.split(jax.random.key(0), n)
    weights, lambdas = compiled(size, mixing)(keys)
    return np.asarray(weights), np.asarray(lambdas)


@pytest.mark.parametrize("alpha", [0.2, 8.0])
def test_lambda_of_mixup_has_the_moments_of_the_beta_distribution(alpha):
    weights, lam = draws(4000, (1, 1), mixup_alpha=alpha)
    assert np.array_equal(weights.reshape(4000), lam)
    assert lam.min() >= 0
    assert lam.max() <= 1
    variance = 1 / (4 * (2 * alpha + 1))
    tolerance = 5 / math.sqrt(4000)
    assert lam.mean() == pytest.approx(0.5, abs=tolerance * math.sqrt(variance))
    # The variance of a squared deviation is at most (1/4) ** 2.
    assert lam.var() == pytest.approx(variance, abs=tolerance / 4)


def test_mixup_weighs_all_pixels_alike():
    weights, lam = draws(20, mixup_alpha=1.0)
    np.testing.assert_array_equal(weights, np.broadcast_to(lam[:, None, None], weights.shape))


def test_cutmix_pastes_one_rectangle_and_lambda_is_the_share_of_the_rest():
    weights, lam = draws(400, cutmix_alpha=0.8)
    pasted = weights == 0
    np.testing.assert_array_equal(weights, ~pasted)
    np.testing.assert_allclose(lam, weights.mean(axis=(1, 2)), atol=2 * EPS)
    rows, columns = pasted.any(axis=2), pasted.any(axis=1)
    np.testing.assert_array_equal(pasted, rows[:, :, None] & columns[:, None, :])
    for line in (rows, columns):
        edges = np.diff(np.pad(line, ((0, 0), (1, 1))).astype(int), axis=1)
        assert (np.abs(edges).sum(axis=1) <= 2).all()
    assert pasted.any(axis=0).all()


def test_a_batch_is_mixed_with_its_probability():
    _, lam = draws(1000, mixup_alpha=8.0, probability=0.3)
    assert (lam < 1).mean() == pytest.approx(0.3, abs=5 * math.sqrt(0.3 * 0.7 / 1000))


@pytest.mark.parametrize(("probability", "alone"), [(0.0, "mixup_alpha"), (1.0, "cutmix_alpha")])
def test_the_switch_at_its_ends_is_one_of_the_two_alone(probability, alone):
    both = draws(50, mixup_alpha=0.5, cutmix_alpha=0.5, switch_probability=probability)
    for found, expected in zip(both, draws(50, **{alone: 0.5}), strict=True):
        np.testing.assert_array_equal(found, expected)
