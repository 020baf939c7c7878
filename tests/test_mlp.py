"""Two layers with a GELU between them, fused and step by step."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import erf

from sparsemlp.mlp import gelu

EPS = float(np.finfo(np.float32).eps)


def test_gelu_is_the_exact_one_with_erf():
    x = np.linspace(-6, 6, 241).astype(np.float32)
    exact = x.astype(np.float64) * (1 + erf(x.astype(np.float64) / math.sqrt(2))) / 2
    # 1 + erf loses everything below eps, and is multiplied by x / 2.
    tolerance = 4 * EPS * np.maximum(np.abs(x), 1)
    assert np.all(np.abs(np.asarray(gelu(jnp.asarray(x)), np.float64) - exact) <= tolerance)
    tanh_form = jax.nn.gelu(jnp.asarray(x), approximate=True)
    assert np.any(np.abs(np.asarray(tanh_form, np.float64) - exact) > tolerance)


def test_gelu_keeps_bfloat16():
    assert gelu(jnp.ones(3, jnp.bfloat16)).dtype == jnp.bfloat16
