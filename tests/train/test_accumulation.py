"""Parts of a batch add up to it, what is drawn at random included."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp.train.accumulation import size_of_parts, sum_over_parts
from sparsemlp.varying import draw_part

SAMPLES = jnp.arange(14.0).reshape(7, 2) + 1


@pytest.mark.parametrize("most", [1, 2, 3, 7, 20, 32, 128])
def test_parts_are_the_fewest_that_fit_and_as_equal_as_they_can_be(most):
    for n_samples in range(1, 130):
        size = size_of_parts(n_samples, most)
        n_parts = math.ceil(n_samples / size)
        assert size <= most
        assert n_parts == math.ceil(n_samples / most)
        assert n_parts * size - n_samples < n_parts


def drawn(samples: jax.Array) -> tuple[Any, Any]:
    """Sums and values of samples whose random numbers depend on nothing but their place."""
    key = jax.random.key(5)
    noise = draw_part(lambda shape: jax.random.randint(key, shape, 1, 9), (len(samples), 1), key)
    values = samples * noise
    return {"sum": jnp.sum(values), "squares": jnp.sum(values**2, axis=0)}, values


@functools.cache
def whole() -> tuple[Any, Any]:
    return drawn(SAMPLES)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 9])
def test_parts_of_any_size_add_up_to_the_whole(size):
    """Small integers: every sum is exact. Samples that fill up a part are zeros and add nothing."""
    start = jax.tree.map(jnp.zeros_like, whole()[0])
    total, values = jax.jit(lambda x: sum_over_parts(drawn, (x,), start, size))(SAMPLES)
    jax.tree.map(np.testing.assert_array_equal, total, whole()[0])
    np.testing.assert_array_equal(values, whole()[1])


def test_a_batch_that_fits_is_computed_as_it_is():
    seen = []

    def function(samples):
        seen.append(samples)
        return jnp.float32(0), samples

    sum_over_parts(function, (SAMPLES,), jnp.float32(0), 7)
    assert seen[0] is SAMPLES


def test_the_parts_are_one_loop_however_many_there_are():
    def primitives(size: int) -> list[str]:
        start = jax.tree.map(jnp.zeros_like, whole()[0])
        program = jax.make_jaxpr(lambda x: sum_over_parts(drawn, (x,), start, size))(SAMPLES)
        return [equation.primitive.name for equation in program.eqns]

    assert primitives(1).count("scan") == 1
    assert len(primitives(1)) <= len(primitives(2))
