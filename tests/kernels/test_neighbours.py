"""Which neighbours are kept, against a stable sort of each group in NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import Neighbours
from pallas_kernels.neighbours import keep_largest, largest, rescaling

EPS = np.finfo(np.float32).eps


def sorted_groups(dy: np.ndarray, n: int, m: int, axis: int) -> np.ndarray:
    groups = np.moveaxis(dy, axis, -1)
    groups = groups.reshape(*groups.shape[:-1], -1, m)
    order = np.argsort(-np.abs(groups), axis=-1, kind="stable")
    kept = np.zeros_like(groups)
    np.put_along_axis(
        kept, order[..., :n], np.take_along_axis(groups, order[..., :n], axis=-1), axis=-1
    )
    shape = np.moveaxis(dy, axis, -1).shape
    return np.moveaxis(kept.reshape(shape), -1, axis)


@pytest.mark.parametrize("axis", [-1, -2, 1])
@pytest.mark.parametrize(("n", "m"), [(1, 2), (2, 4), (3, 4), (5, 16)])
def test_the_largest_of_each_group_are_kept(n, m, axis):
    # Small integers: ties in almost every group.
    dy = np.random.default_rng(0).integers(-3, 4, size=(3, 16, 32)).astype(np.float32)
    np.testing.assert_array_equal(
        keep_largest(jnp.asarray(dy), Neighbours(n, m), axis), sorted_groups(dy, n, m, axis)
    )


def test_rescaled_keeps_the_sum_of_each_sample_and_index():
    dy = jnp.asarray(np.random.default_rng(1).normal(size=(3, 40, 8)), jnp.float32)
    kept = keep_largest(dy, Neighbours(2, 4, rescaled=True), -1)
    np.testing.assert_allclose(
        np.abs(kept).sum(axis=1), np.abs(dy).sum(axis=1), rtol=8 * EPS * np.sqrt(40)
    )


def test_a_ranking_is_its_own():
    ranking = jnp.array([[4, 1, 2, 3]], jnp.uint32)
    np.testing.assert_array_equal(largest(ranking, 2, 4, -1), [[True, False, False, True]])


def test_sums_of_the_factor_do_not_overflow():
    dy = 100 * jnp.ones((1, 1024, 2), jnp.float16)
    kept = dy.at[:, ::2].set(0)
    np.testing.assert_array_equal(rescaling(dy, kept, -1), np.full((1, 1, 2), 2.0))
