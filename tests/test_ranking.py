"""The largest scores are found exactly, by sorting and by bisection alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp.ranking import MANY, _by_bisection, _by_sorting, largest, largest_of_each


def first_of_all(scores: np.ndarray, k: int) -> np.ndarray:
    """By NumPy: NaN first, then the largest, of equals the lower id."""
    ranks = np.where(np.isnan(scores), np.inf, scores)
    order = np.lexsort((np.arange(len(scores)), -ranks, ~np.isnan(scores)))
    return np.sort(order[:k])


def draw(n: int, kind: str) -> np.ndarray:
    scores = np.random.default_rng(n).normal(size=n).astype(np.float32)
    if kind == "of few values":
        scores = scores.round(1)
    if kind == "of all kinds":
        odd = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38]
        scores[: 10 * (n // 20)] = np.tile(odd, n // 20).astype(np.float32)
    return scores


@pytest.mark.parametrize("find", [_by_sorting, _by_bisection])
@pytest.mark.parametrize("kind", ["distinct", "of few values", "of all kinds"])
@pytest.mark.parametrize("k", [1, 3, 30, 59])
def test_the_k_largest_are_found_whatever_the_scores_are(find, kind, k):
    scores = draw(60, kind)
    found = find(jnp.asarray(scores), k)
    assert found.dtype == jnp.int32
    np.testing.assert_array_equal(found, first_of_all(scores, k))


@pytest.mark.parametrize("n", [MANY - 1, MANY])
@pytest.mark.parametrize("jitted", [True, False])
def test_few_and_many_scores_are_ranked_alike(n, jitted):
    scores = draw(n, "of few values")
    find = jax.jit(largest, static_argnums=1) if jitted else largest
    for k in (0, n // 3, n):
        found = find(jnp.asarray(scores), k)
        assert found.dtype == jnp.int32
        np.testing.assert_array_equal(found, first_of_all(scores, k))


def test_many_scores_are_ranked_where_nothing_is_compiled():
    scores = draw(MANY, "distinct")
    with jax.disable_jit():
        found = largest(jnp.asarray(scores), 5)
    np.testing.assert_array_equal(found, first_of_all(scores, 5))


def test_zeros_of_both_signs_are_equal():
    assert largest(jnp.array([-0.0, 0.0, -1.0]), 1).tolist() == [0]


def test_many_scores_are_ranked_on_every_device_of_a_mesh():
    """What they vary over the choice varies over."""
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    scores = jnp.asarray(draw(MANY, "distinct"))
    spec = jax.sharding.PartitionSpec("data")
    found = jax.jit(
        jax.shard_map(lambda s: largest(s, 7), mesh=mesh, in_specs=spec, out_specs=spec)
    )(scores)
    np.testing.assert_array_equal(found, first_of_all(np.asarray(scores), 7))


def test_kernels_that_are_ranked_together_keep_what_each_keeps_alone():
    sizes = {"a": (16, 4), "b": (9, 3), "c": (16, 4), "d": (16, 16), "e": (16, 5)}
    sizes |= {"f": (MANY, 9), "g": (MANY, 9)}
    scores = {
        path: jnp.asarray(draw(n, "of few values")) + seed % 2
        for seed, (path, (n, _)) in enumerate(sizes.items())
    }
    together = largest_of_each(scores, {path: k for path, (_, k) in sizes.items()})
    assert list(together) == list(scores)
    for path, (_, k) in sizes.items():
        assert together[path].dtype == jnp.int32
        np.testing.assert_array_equal(together[path], largest(scores[path], k))
