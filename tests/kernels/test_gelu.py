"""GELU inside a kernel, which has no error function."""

import jax
import jax.numpy as jnp
import numpy as np
import reference_mlp
from scipy.special import erfc

from pallas_kernels.gelu import gelu, through_gelu

EPS = float(np.finfo(np.float32).eps)


def test_gelu_and_its_derivative_are_exact_to_a_few_roundings():
    x = np.linspace(-12, 12, 4801).astype(np.float32)
    value, derivative = reference_mlp.gelu(x.astype(np.float64))
    tolerance = 4 * EPS * np.maximum(np.abs(x), 1)
    for found, wanted in zip(jax.jit(gelu)(x), (value, derivative), strict=True):
        assert np.all(np.abs(np.asarray(found, np.float64) - wanted) <= tolerance)


def test_the_left_tail_is_relatively_right():
    x = np.linspace(-10, -2, 401).astype(np.float32)
    wanted = x * erfc(-x.astype(np.float64) / np.sqrt(2)) / 2
    found = np.asarray(jax.jit(gelu)(x)[0], np.float64)
    # The exponent -x^2 / 2 errs by half an eps of itself, and so does its exponential.
    assert np.all(np.abs(found / wanted - 1) <= EPS * (4 + x.astype(np.float64) ** 2))


def test_what_is_not_finite_stays_so():
    value, derivative = gelu(jnp.asarray([jnp.nan, jnp.inf]))
    assert np.isnan(value[0])
    assert np.isnan(derivative[0])
    assert np.isinf(value[1])


def test_a_gradient_passes_gelu_in_float32_and_keeps_its_dtype():
    before = jnp.linspace(-4, 4, 65, dtype=jnp.bfloat16)
    after = jnp.flip(before)
    units, gradient = through_gelu(before, after)
    assert units.dtype == gradient.dtype == jnp.bfloat16
    value, derivative = gelu(before.astype(jnp.float32))
    np.testing.assert_array_equal(units, value.astype(jnp.bfloat16))
    wanted = (after.astype(jnp.float32) * derivative).astype(jnp.bfloat16)
    np.testing.assert_array_equal(gradient, wanted)
