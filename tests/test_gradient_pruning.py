"""N:M pruning of gradients against definitions that loop over groups in NumPy float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp import GradientPruning, sparse_linear
from sparsemlp.errors import InputError
from sparsemlp.gradient_pruning import prune_gradient

EPS = np.finfo(np.float32).eps


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def magnitude(dy: np.ndarray, n: int, m: int) -> np.ndarray:
    """The largest n of each m neighbours on the last axis, by a stable sort of each group."""
    kept = np.zeros_like(dy)
    for index in np.ndindex(*dy.shape[:-1], dy.shape[-1] // m):
        group = (*index[:-1], slice(index[-1] * m, (index[-1] + 1) * m))
        keys = [np.inf if np.isnan(v) else abs(v) for v in dy[group]]
        for i in sorted(range(m), key=lambda i: (-keys[i], i))[:n]:
            kept[group][i] = dy[group][i]
    return kept


def rescaled(dy: np.ndarray, n: int, m: int) -> np.ndarray:
    """`magnitude` times the share of each sample's and channel's sum that was lost."""
    kept = magnitude(dy, n, m).astype(np.float64)
    for sample in range(dy.shape[0]):
        for channel in range(dy.shape[-1]):
            part = np.abs(kept[sample, ..., channel]).sum()
            whole = np.abs(dy[sample, ..., channel].astype(np.float64)).sum()
            kept[sample, ..., channel] *= whole / part if part > 0 else 1
    return kept


@functools.partial(jax.jit, static_argnames=("rule", "axis"))
def pruned(dy, rule, axis=-1, rng=None):
    return prune_gradient(dy, rule, axis=axis, rng=rng)


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (3, 4), (4, 8), (1, 2), (8, 32)])
def test_magnitude_keeps_the_largest_of_each_group(n, m):
    dy = normal(3, 2, 32)
    np.testing.assert_array_equal(pruned(dy, GradientPruning(n, m)), magnitude(dy, n, m))


@pytest.mark.parametrize(
    "group",
    [
        [1, -1, 1, -1],
        [0, 0, 0, 0],
        [0, -0.0, 0, 5],
        [np.nan, 1, 2, np.nan],
        [np.nan, np.nan, np.nan, 1],
        [np.inf, -np.inf, np.nan, 1],
        [3, 2, 2, 2],
        [1.2e-38, 0, -1.2e-38, 0],
    ],
    ids=str,
)
def test_ties_keep_the_lower_index_and_nan_counts_as_the_largest(group):
    dy = np.array([group], np.float32)
    for n in (1, 2, 3):
        np.testing.assert_array_equal(pruned(dy, GradientPruning(n, 4)), magnitude(dy, n, 4))


@pytest.mark.parametrize("shape", [(4, 8), (3, 5, 8), (2, 3, 4, 8)], ids=str)
def test_rescaled_restores_the_sum_of_each_sample_and_channel_over_its_positions(shape):
    dy = normal(*shape)
    dy[0, ..., 2] = 0
    expected = rescaled(dy, 2, 4)
    found = pruned(dy, GradientPruning(2, 4, "rescaled"))
    bound = 4 * EPS * np.prod(shape[1:-1])
    np.testing.assert_allclose(found, expected, rtol=bound)
    if len(shape) == 2:
        np.testing.assert_array_equal(found, magnitude(dy, 2, 4))


def test_tiny_gradients_are_rescaled_as_any_others():
    dy = normal(2, 6, 8)
    plain = pruned(dy, GradientPruning(1, 4, "rescaled"))
    tiny = pruned(dy * np.float32(2**-80), GradientPruning(1, 4, "rescaled"))
    np.testing.assert_array_equal(tiny * np.float32(2**80), plain)


def test_a_channel_that_is_never_kept_stays_zero():
    dy = np.abs(normal(2, 5, 4)) + 1
    dy[..., 3] = 1e-3
    found = pruned(dy, GradientPruning(3, 4, "rescaled"))
    assert np.all(found[..., 3] == 0)
    assert np.all(np.isfinite(found))


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 32), (16, 32)])
def test_random_keeps_n_of_each_group_unscaled_and_every_place_equally_often(n, m):
    groups = 4096
    dy = np.arange(1, groups * m + 1, dtype=np.float32).reshape(1, -1)
    found = np.asarray(pruned(dy, GradientPruning(n, m, "random"), rng=jax.random.key(0)))
    kept = found != 0
    np.testing.assert_array_equal(found[kept], dy[kept])
    assert np.all(kept.reshape(groups, m).sum(axis=1) == n)
    shares = kept.reshape(groups, m).mean(axis=0)
    np.testing.assert_allclose(shares, n / m, atol=5 * 0.5 / np.sqrt(groups))
    other = pruned(dy, GradientPruning(n, m, "random"), rng=jax.random.key(1))
    assert np.any(other != found)


def test_random_makes_every_choice_equally_often_and_apart_from_its_neighbours():
    n, m, shape = 2, 4, (32, 64, 8)
    rule = GradientPruning(n, m, "random")
    found = np.asarray(pruned(np.ones(shape), rule, axis=-2, rng=jax.random.key(3)))
    groups = found.reshape(32, 16, m, 8).swapaxes(2, 3).reshape(-1, m)
    assert np.all(groups.sum(axis=1) == n)
    choices, counts = np.unique(groups, axis=0, return_counts=True)
    assert len(choices) == math.comb(m, n)
    share = 1 / len(choices)
    np.testing.assert_allclose(counts / len(groups), share, atol=5 * np.sqrt(share / len(groups)))
    same = np.mean(np.all(groups[1:] == groups[:-1], axis=1))
    np.testing.assert_allclose(same, share, atol=5 * np.sqrt(share / len(groups)))


@pytest.mark.parametrize("method", ["magnitude", "rescaled"])
def test_groups_run_along_the_given_axis(method):
    dy = normal(2, 8, 3)
    definition = magnitude if method == "magnitude" else rescaled
    expected = definition(dy.swapaxes(1, 2), 2, 4).swapaxes(1, 2)
    found = pruned(dy, GradientPruning(2, 4, method), axis=-2)
    np.testing.assert_allclose(found, expected, rtol=16 * EPS)


@pytest.mark.parametrize("method", ["random", "magnitude", "rescaled"])
def test_all_of_m_is_the_gradient_itself(method):
    dy = normal(2, 3, 8)
    rule = GradientPruning(4, 4, method)
    np.testing.assert_array_equal(pruned(dy, rule, rng=jax.random.key(0)), dy)


@pytest.mark.parametrize("method", ["random", "magnitude", "rescaled"])
def test_bfloat16_stays_bfloat16(method):
    dy = jnp.asarray(normal(2, 3, 8), jnp.bfloat16)
    found = pruned(dy, GradientPruning(2, 4, method), rng=jax.random.key(0))
    assert found.dtype == jnp.bfloat16
    assert np.sum(np.asarray(found) != 0) == dy.size // 2


def test_it_maps_over_a_batch_of_gradients():
    dy = normal(3, 2, 5, 8)
    rule = GradientPruning(2, 4, "rescaled")
    found = jax.vmap(lambda a: prune_gradient(a, rule))(dy)
    np.testing.assert_array_equal(found, jnp.stack([pruned(a, rule) for a in dy]))


def test_a_group_that_does_not_divide_names_those_that_do():
    with pytest.raises(InputError, match=r"2:4 does not divide the 6 .* 6 % 4 = 2; m may be 2, 3"):
        prune_gradient(jnp.ones((2, 6)), GradientPruning(2, 4))


@pytest.mark.parametrize(("rng", "says"), [(None, "has no key"), (0, "rng=0 is no key")])
def test_random_without_a_key_says_where_to_pass_one(unchecked, rng, says):
    with pytest.raises(InputError, match=rf"{says}: pass rng=jax\.random\.key"):
        prune_gradient(jnp.ones((2, 8)), GradientPruning(2, 4, "random"), rng=rng)


@pytest.mark.parametrize("rng", [7, 1.5, np.uint32(3), np.ones(2), np.ones((0, 2), np.uint32)])
def test_what_is_no_key_is_told_where_something_is_drawn_alone(unchecked, rng):
    x, kernel = jnp.ones((2, 4)), jnp.ones((4, 8))
    for rule in (None, GradientPruning(2, 4)):
        y = sparse_linear(x, kernel, gradient=rule, rng=rng)
        np.testing.assert_array_equal(y, x @ kernel)
    with pytest.raises(InputError, match="is no key: pass rng=jax"):
        sparse_linear(x, kernel, gradient=GradientPruning(2, 4, "random"), rng=rng)
