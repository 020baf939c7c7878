"""A kernel's gradient from the kept blocks of an activation: every engine against NumPy float64."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pairwise import every_pair

from pallas_kernels import ENGINES

SAMPLES, CHANNELS = 3, 16
N = SAMPLES * CHANNELS

OWN = [
    name
    for name, engine in ENGINES.items()
    if name == "reference" or "compact_gradient" in vars(type(engine))
]
"""Engines that have their own way; the others inherit one of them."""
engines = pytest.mark.parametrize("engine", OWN)


class Problem:
    """Random kept blocks of an activation `[N, n_in]`, and dy with the layer's outputs last."""

    def __init__(
        self, n_in: int, n_out: int, block: tuple[int, int], ratio: float, dtype: Any = jnp.float32
    ) -> None:
        rng = np.random.default_rng(0)
        height, width = block
        n_blocks = N // height * (n_in // width)
        k = max(1, round(n_blocks * (1 - ratio)))
        self.ids = np.sort(rng.choice(n_blocks, k, replace=False)).astype(np.int32)
        self.values = jnp.asarray(rng.normal(size=(k, *block)), dtype)
        self.dy = jnp.asarray(rng.normal(size=(N, n_out)), dtype)
        self.n_in = n_in

    def rows(self) -> np.ndarray:
        """The activation, zero where blocks were dropped."""
        values = np.asarray(self.values, np.float64)
        _, height, width = values.shape
        rows = np.zeros((N, self.n_in))
        for value, i in zip(values, self.ids, strict=True):
            down, across = divmod(int(i), self.n_in // width)
            rows[down * height :, across * width :][:height, :width] = value
        return rows

    def shaped_dy(self, axis: int) -> jax.Array:
        """The gradient dy as a layer along that axis has it, rows being channels of samples."""
        dy = self.dy.reshape(SAMPLES, CHANNELS, -1)
        return dy if axis == -1 else dy.swapaxes(1, 2)


@functools.partial(jax.jit, static_argnames=("engine", "n_in", "axis"))
def gradient(values, ids, dy, engine, n_in, axis):
    return ENGINES[engine].compact_gradient(values, ids, dy, n_in, axis)


@every_pair(
    engine=OWN,
    axis=(-1, -2),
    dtype=(jnp.float32, jnp.bfloat16),
    block=((8, 8), (16, 4), (4, 12), (1, 24), (48, 1), (6, 8)),
    ratio=(0.0, 0.8),
)
def test_dw_is_the_product_of_what_was_kept(engine, axis, dtype, block, ratio):
    problem = Problem(24, 40, block, ratio, dtype)
    found = gradient(
        problem.values, problem.ids, problem.shaped_dy(axis), engine, problem.n_in, axis
    )
    x, dy = problem.rows(), np.asarray(problem.dy, np.float64)
    assert found.dtype == dtype
    eps, rounding = np.finfo(np.float32).eps, 0 if dtype == jnp.float32 else 2.0**-8
    expected, size = x.T @ dy, abs(x).T @ abs(dy)
    bound = 4 * eps * np.sqrt(N) * size + rounding * abs(expected) + 1e-30
    np.testing.assert_array_less(abs(np.asarray(found, np.float64) - expected), bound)


@engines
def test_it_maps_over_a_batch(engine):
    problem = Problem(24, 40, (8, 8), 0.5)
    dy = jnp.stack([problem.dy, -problem.dy])
    call = functools.partial(
        ENGINES[engine].compact_gradient,
        problem.values,
        jnp.asarray(problem.ids),
        n_in=24,
        axis=-1,
    )
    found = jax.jit(jax.vmap(call))(dy)
    np.testing.assert_array_equal(found[0], -found[1])
    np.testing.assert_allclose(found[0], call(problem.dy), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ids": jnp.array([0, 1, 0], jnp.int32)}, "do not ascend"),
        ({"ids": jnp.array([0, 1, 18], jnp.int32)}, "do not ascend"),
        ({"ids": jnp.array([-1, 1, 2], jnp.int32)}, "do not ascend"),
        ({"ids": jnp.array([0, 1], jnp.int32)}, "one for each"),
        ({"values": jnp.ones((3, 7, 8))}, "do not divide the activation"),
        ({"values": jnp.ones((3, 8, 7))}, "do not divide the activation"),
        ({"values": jnp.ones((3, 8, 8), jnp.float16)}, "one dtype"),
        ({"n_in": 20}, "do not divide the activation"),
    ],
)
def test_wrong_operands_are_an_error_and_no_crash(changes, says, unchecked):
    good: dict[str, Any] = {
        "values": jnp.ones((3, 8, 8)),
        "ids": jnp.array([0, 1, 17], jnp.int32),
        "dy": jnp.ones((N, 40)),
        "n_in": 24,
        "axis": -1,
    }
    with pytest.raises(Exception, match=says):
        jax.block_until_ready(ENGINES["cpu"].compact_gradient(**{**good, **changes}))
