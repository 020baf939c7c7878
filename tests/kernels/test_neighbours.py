"""Which neighbours are kept, against a stable sort of each group in NumPy."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native import needs_native

from pallas_kernels import ENGINES, Neighbours
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


CPU = ENGINES["cpu"]


@functools.partial(jax.jit, static_argnames=("kept", "axis"))
def by_cpu(dy, kept, axis):
    return CPU.keep_largest(dy, kept, axis)


@needs_native
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])
@pytest.mark.parametrize(
    ("shape", "n", "m"),
    [
        ((3, 16, 32), 1, 2),
        ((2, 48, 24), 2, 4),
        ((5, 64, 96), 3, 8),
        ((48, 96), 5, 16),
        ((2, 3, 32, 64), 7, 32),
        ((4, 64, 64), 17, 32),
        ((2, 32, 32), 31, 32),
        ((1, 12, 36), 2, 12),
        ((0, 8, 8), 2, 4),
        ((3, 8, 0), 2, 4),
    ],
    ids=str,
)
def test_engine_cpu_keeps_what_the_definition_does(shape, n, m, axis, dtype):
    rng = np.random.default_rng(0)
    values = rng.normal(size=shape)
    dy = jnp.asarray(np.where(rng.random(shape) < 0.3, np.round(2 * values), values), dtype)
    if shape[axis] % m == 0:
        found = by_cpu(dy, Neighbours(n, m), axis)
        np.testing.assert_array_equal(found, keep_largest(dy, Neighbours(n, m), axis))
        rescaled = Neighbours(n, m, rescaled=True)
        found, want = (
            np.asarray(a, np.float64)
            for a in (by_cpu(dy, rescaled, axis), keep_largest(dy, rescaled, axis))
        )
        np.testing.assert_array_equal(found == 0, want == 0)
        np.testing.assert_allclose(found, want, rtol=4 * float(jnp.finfo(dtype).eps) + 1e-6)


@needs_native
@pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])
def test_engine_cpu_takes_nan_as_infinite(axis):
    dy = np.ones((2, 16, 16), np.float32)
    dy[0, 5, 5], dy[1, 8, [0, 1]], dy[1, 12, 12] = np.nan, (np.inf, np.nan), -np.inf
    given = jnp.asarray(dy)
    kept = Neighbours(1, 4)
    np.testing.assert_array_equal(by_cpu(given, kept, axis), keep_largest(given, kept, axis))


@needs_native
@pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])
def test_engine_cpu_maps_over_batches(axis):
    dy = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3, 8, 16)), jnp.float32)
    kept = Neighbours(2, 4, rescaled=True)
    mapped = jax.jit(jax.vmap(lambda a: CPU.keep_largest(a, kept, axis)))(dy)
    np.testing.assert_array_equal(mapped, jnp.stack([CPU.keep_largest(a, kept, axis) for a in dy]))


def test_more_neighbours_than_engine_cpu_compares_are_left_to_xla():
    dy: Any = jnp.asarray(np.random.default_rng(0).normal(size=(3, 64)), jnp.float32)
    kept = Neighbours(9, 64)
    np.testing.assert_array_equal(by_cpu(dy, kept, -1), keep_largest(dy, kept, -1))


def test_rescaling_stays_within_what_the_dtype_holds():
    dy = jnp.array([[[1e-6, 2.0], [0.1, 1.0], [0.1, 0.0], [0.1, 0.0]]], jnp.float16)
    kept = dy.at[:, 1:].set(0)
    factor = rescaling(dy, kept, -1)
    np.testing.assert_array_equal(factor[0, 0], [65504, 1.5])
    assert jnp.all(jnp.isfinite(kept * factor))


def test_rescaling_needs_no_implicit_promotion():
    dy = jnp.ones((2, 4, 8), jnp.bfloat16)
    with jax.numpy_dtype_promotion("strict"):
        kept = keep_largest(dy, Neighbours(2, 4, rescaled=True), -1)
    assert kept.dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        jnp.sum(kept, axis=1), jnp.sum(dy, axis=1) * (jnp.arange(8) % 4 < 2)
    )
