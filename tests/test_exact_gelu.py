"""GELU and its slope against float64, and what the backward pass is left."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import erf

from sparsemlp.gelu import gelu

EPS = float(np.finfo(np.float32).eps)


def test_gelu_is_the_exact_one_with_erf():
    x = np.linspace(-6, 6, 241).astype(np.float32)
    exact = x.astype(np.float64) * (1 + erf(x.astype(np.float64) / math.sqrt(2))) / 2
    # 1 + erf loses everything below eps, and is multiplied by x / 2.
    tolerance = 4 * EPS * np.maximum(np.abs(x), 1)
    assert np.all(np.abs(np.asarray(gelu(jnp.asarray(x)), np.float64) - exact) <= tolerance)
    slope = jax.vmap(jax.grad(gelu))(jnp.asarray(x))
    density = np.exp(-(x.astype(np.float64) ** 2) / 2) / math.sqrt(2 * math.pi)
    exact_slope = (1 + erf(x.astype(np.float64) / math.sqrt(2))) / 2 + x * density
    assert np.all(np.abs(np.asarray(slope, np.float64) - exact_slope) <= tolerance)
    tanh_form = jax.nn.gelu(jnp.asarray(x), approximate=True)
    assert np.any(np.abs(np.asarray(tanh_form, np.float64) - exact) > tolerance)


def test_gelu_in_bfloat16_is_the_exact_one_rounded():
    x = jnp.linspace(-4, 4, 161).astype(jnp.bfloat16)
    wide = np.asarray(x, np.float64)
    found = gelu(x)
    assert found.dtype == jnp.bfloat16
    exact = wide * (1 + erf(wide / math.sqrt(2))) / 2
    # Half a unit in the last of 8 bits, and what 1 + erf loses in float32.
    np.testing.assert_allclose(np.asarray(found, np.float64), exact, rtol=2**-8, atol=8 * EPS)
    slope = jax.vmap(jax.grad(gelu))(x)
    assert slope.dtype == jnp.bfloat16
    exact = (1 + erf(wide / math.sqrt(2))) / 2 + wide * np.exp(-(wide**2) / 2) / math.sqrt(
        2 * math.pi
    )
    np.testing.assert_allclose(np.asarray(slope, np.float64), exact, rtol=2**-8, atol=8 * EPS)


def test_the_backward_pass_is_left_one_array_of_the_dtype_of_x():
    for dtype in (jnp.float32, jnp.bfloat16):
        _, pull = jax.vjp(gelu, jnp.ones((8, 16), dtype))
        (left,) = (leaf for leaf in jax.tree.leaves(pull) if getattr(leaf, "size", 0) > 1)
        assert (left.shape, left.dtype) == ((8, 16), dtype)
