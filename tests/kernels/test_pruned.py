"""Products with the largest neighbours of a gradient: every engine against NumPy float64."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pairwise import every_pair

from pallas_kernels import ENGINES, Neighbours
from pallas_kernels.cpu.engine import MOST_KEPT

F32, BF16 = jnp.float32, jnp.bfloat16
EPS = np.finfo(np.float32).eps

OWN = [
    name
    for name, engine in ENGINES.items()
    if name == "reference" or "pruned_input_gradient" in vars(type(engine))
]
"""Engines that have their own way; the others inherit one of them."""
engines = pytest.mark.parametrize("engine", OWN)


def normal(*shape: int, dtype: Any = F32, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def kept_entries(dy: np.ndarray, kept: Neighbours) -> np.ndarray:
    """The gradient that is multiplied, float64 `[samples, positions, out]`."""
    groups = dy.reshape(*dy.shape[:-1], -1, kept.m)
    order = np.argsort(-np.abs(groups), axis=-1, kind="stable")[..., : kept.n]
    pruned = np.zeros_like(groups)
    np.put_along_axis(pruned, order, np.take_along_axis(groups, order, -1), -1)
    pruned = pruned.reshape(dy.shape)
    if kept.rescaled:
        part = np.abs(pruned).sum(axis=1, keepdims=True)
        pruned *= np.where(
            part > 0, np.abs(dy).sum(axis=1, keepdims=True) / (part + (part == 0)), 1
        )
    return pruned


@functools.partial(jax.jit, static_argnames=("engine", "kept", "axis"))
def gradient(dy, kernel, engine, kept, axis: Any = -1):
    return ENGINES[engine].pruned_input_gradient(dy, kernel, kept, axis)


def check(engine: str, dy: jax.Array, kernel: jax.Array, kept: Neighbours, axis: Any = -1) -> None:
    """Holds a product with dy `[samples, positions, out]` to its definition."""
    turned = dy if axis == -1 else dy.swapaxes(1, 2)
    found = gradient(turned, kernel, engine, kept, axis)
    assert found.dtype == dy.dtype
    found = np.asarray(found if axis == -1 else found.swapaxes(1, 2), np.float64)
    used, w = kept_entries(np.asarray(dy, np.float64), kept), np.asarray(kernel, np.float64)
    expected, size = used @ w.T, abs(used) @ abs(w).T
    n_terms = max(1, dy.shape[2] * kept.n // kept.m) + (dy.shape[1] if kept.rescaled else 0)
    # A factor and what it multiplies are rounded once each, and so is the result.
    rounding = 0 if dy.dtype == F32 else 2.0**-8
    bound = (4 * EPS * math.sqrt(n_terms) + (2 * rounding if kept.rescaled else 0)) * size
    assert found.shape == expected.shape
    np.testing.assert_array_less(
        abs(found - expected), bound + rounding * (abs(expected) + bound) + 1e-30
    )


@every_pair(
    engine=OWN,
    axis=(-1, -2),
    dtype=(F32, BF16),
    kept=(
        *(Neighbours(n, m) for n, m in ((1, 2), (3, 4), (6, 8), (4, 32), (17, 32))),
        *(Neighbours(n, m, rescaled=True) for n, m in ((2, 4), (1, 8), (16, 32))),
    ),
)
def test_dx_is_the_product_of_what_is_kept(engine, axis, dtype, kept):
    check(engine, normal(2, 21, 96, dtype=dtype), normal(37, 96, dtype=dtype, seed=1), kept, axis)


@every_pair(
    engine=OWN,
    dtype=(F32, BF16),
    rescaled=(False, True),
    shape=(
        (1, 1, 1, 4),
        (1, 1, 16, 8),
        (3, 16, 64, 4),
        (5, 17, 100, 12),
        (1, 300, 250, 260),
        (2, 129, 8, 1028),
        (130, 2, 130, 8),
        (9, 31, 15, 20),
    ),
)
def test_any_number_of_rows_inputs_and_outputs(engine, dtype, rescaled, shape):
    samples, positions, n_in, n_out = shape
    dy = normal(samples, positions, n_out, dtype=dtype)
    check(engine, dy, normal(n_in, n_out, dtype=dtype, seed=1), Neighbours(2, 4, rescaled))


@engines
@pytest.mark.parametrize("rescaled", [False, True], ids=["magnitude", "rescaled"])
@pytest.mark.parametrize(
    ("dy", "kernel"),
    [((0, 8), (6, 8)), ((3, 0, 8), (6, 8)), ((3, 20, 8), (0, 8))],
    ids=str,
)
def test_nothing_in_is_nothing_or_zero_out(engine, rescaled, dy, kernel):
    found = gradient(jnp.ones(dy), jnp.ones(kernel), engine, Neighbours(2, 4, rescaled))
    np.testing.assert_array_equal(found, np.zeros((*dy[:-1], kernel[0])))


@engines
@pytest.mark.parametrize("rescaled", [False, True], ids=["magnitude", "rescaled"])
def test_zeros_stay_zeros_and_equal_magnitudes_keep_the_lower_index(engine, rescaled):
    dy = np.random.default_rng(0).integers(-2, 3, size=(2, 40, 24)).astype(np.float32)
    dy[0, :7] = 0
    dy[1, :, 5] = 0
    dy[1, :, :4] = -1
    check(engine, jnp.asarray(dy), normal(9, 24, seed=1), Neighbours(3, 8, rescaled))
    zero = gradient(jnp.zeros_like(dy), normal(9, 24), engine, Neighbours(3, 8, rescaled))
    np.testing.assert_array_equal(zero, np.zeros((2, 40, 9)))


@engines
def test_nan_counts_as_infinite(engine):
    dy = np.ones((4, 20, 8), np.float32)
    dy[0, 0, 2] = np.nan
    dy[1, 0, [0, 3]] = np.inf, np.nan
    dy[2, 0, :4] = np.nan
    found = gradient(jnp.asarray(dy), jnp.eye(8), engine, Neighbours(1, 4))
    finite = np.isfinite(found).all(axis=-1)
    np.testing.assert_array_equal(np.argwhere(~finite), [[0, 0], [1, 0], [2, 0]])
    assert np.isnan(found[0, 0]).any()
    assert np.isnan(found[2, 0]).any()
    np.testing.assert_array_equal(found[3], np.tile([1, 0, 0, 0, 1, 0, 0, 0], (20, 1)))


@engines
def test_numbers_that_are_not_finite_end_no_process(engine):
    dy = normal(3, 50, 32).at[0].set(jnp.nan).at[1, ::2].set(-jnp.inf)
    for kept in (Neighbours(2, 4), Neighbours(2, 4, rescaled=True), Neighbours(16, 32)):
        assert not np.isfinite(gradient(dy, normal(12, 32), engine, kept)).all()


def test_engine_cpu_reads_nothing_of_the_kernel_for_what_is_dropped():
    dy = normal(2, 30, 16).at[..., ::4].set(0)
    kernel = normal(20, 16, seed=1).at[:, ::4].set(jnp.nan)
    assert np.isfinite(gradient(dy, kernel, "cpu", Neighbours(3, 4))).all()
    assert not np.isfinite(gradient(dy, kernel, "reference", Neighbours(3, 4))).any()


def test_more_than_engine_cpu_lists_is_the_definition():
    dy, kernel, kept = normal(2, 30, 32), normal(20, 32, seed=1), Neighbours(MOST_KEPT + 1, 32)
    np.testing.assert_array_equal(
        gradient(dy, kernel, "cpu", kept), gradient(dy, kernel, "reference", kept)
    )


@engines
@pytest.mark.parametrize("rescaled", [False, True], ids=["magnitude", "rescaled"])
def test_it_maps_over_batches_of_either_operand(engine, rescaled):
    dys, kernels, kept = normal(3, 2, 20, 16), normal(3, 7, 16, seed=1), Neighbours(2, 4, rescaled)

    def call(dy, kernel):
        return ENGINES[engine].pruned_input_gradient(dy, kernel, kept, -1)

    for axes, operands in (((0, None), (dys, kernels[0])), ((0, 0), (dys, kernels))):
        found = jax.jit(jax.vmap(call, axes))(*operands)
        for i in range(3):
            kernel = operands[1] if axes[1] is None else kernels[i]
            np.testing.assert_allclose(found[i], call(dys[i], kernel), rtol=1e-5, atol=1e-5)


@engines
def test_it_is_split_over_the_devices_of_a_mesh(engine):
    dy, kernel, kept = normal(2, 20, 16), normal(7, 16, seed=1), Neighbours(2, 4, rescaled=True)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.PartitionSpec("data")

    def call(dy, kernel):
        if jax.typeof(dy).manual_axis_type.varying:
            kernel = jax.lax.pcast(kernel, "data", to="varying")
        return ENGINES[engine].pruned_input_gradient(dy, kernel, kept, -1)

    sharded = jax.shard_map(
        call,
        mesh=mesh,
        in_specs=(split, jax.sharding.PartitionSpec()),
        out_specs=split,
        # JAX interprets no kernel where it checks what varies.
        check_vma=not getattr(ENGINES[engine], "interpret", False),
    )
    np.testing.assert_allclose(
        jax.jit(sharded)(dy, kernel), gradient(dy, kernel, engine, kept), rtol=1e-5, atol=1e-5
    )
