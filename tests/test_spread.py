"""What is spread over rows has the gradient that float32 sums give, and the value it had."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp.mixing import mix_tokens
from sparsemlp.mlp import Linear, sparse_mlp
from sparsemlp.modules import Affine, LayerScale
from sparsemlp.spread import spread

N = 32 * 1024
"""Rows whose sum bfloat16 cannot hold: it stops at 256 times a term."""


def drawn(seed: int, *shape: int, dtype=jnp.bfloat16) -> jax.Array:
    return jax.random.uniform(jax.random.key(seed), shape, dtype, 0.5, 1.5)


def test_values_are_those_of_the_parameter():
    x, p = drawn(0, 6, 4), drawn(1, 4, dtype=jnp.float32)
    assert spread(p, x).dtype == jnp.float32
    found = spread(p, x, x.dtype)
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    np.testing.assert_array_equal(found, jnp.broadcast_to(p.astype(x.dtype), x.shape))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_gradient_is_summed_in_float32(dtype):
    dy = drawn(0, N, 4, dtype=dtype)
    found = jax.jit(jax.grad(lambda p: jnp.vdot(spread(p, dy), dy)))(jnp.ones(4))
    np.testing.assert_allclose(found, np.sum(np.asarray(dy, np.float64), axis=0), rtol=1e-3)


@pytest.mark.parametrize("layer", [Affine(dtype=jnp.bfloat16), LayerScale(1.0, dtype=jnp.bfloat16)])
def test_layers_sum_the_gradients_of_their_parameters_in_float32(layer):
    x, dy = drawn(0, N, 4), drawn(1, N, 4)
    params = jax.jit(layer.init)(jax.random.key(0), x[:1])["params"]
    found = jax.jit(jax.grad(lambda p: jnp.vdot(layer.apply({"params": p}, x), dy)))(params)
    wide, rounded = (np.asarray(a, np.float64) for a in (dy, x))
    wanted = {"scale": np.sum(rounded * wide, axis=0), "bias": np.sum(wide, axis=0)}
    for name, gradient in found.items():
        assert gradient.dtype == jnp.float32
        np.testing.assert_allclose(gradient, wanted[name], rtol=1e-2)


@pytest.mark.parametrize("branch", ["tokens", "channels"])
def test_branches_sum_the_gradients_of_their_scales_in_float32(branch):
    rows, side = N // 8, 8
    x, dy = drawn(0, rows, side, side), drawn(1, rows, side, side)
    kernel, ones = jnp.eye(side, dtype=jnp.bfloat16), jnp.ones(side, jnp.bfloat16)

    def loss(scales, bias):
        scale, shift, after = scales
        layer = Linear(kernel, bias)
        if branch == "tokens":
            y = mix_tokens(x, layer, before=(scale, shift), after=after)
        else:
            y = sparse_mlp(x, layer, layer, before=(scale, shift), after=after)
        return jnp.vdot(y, dy)

    given = ((ones, 0 * ones, ones), 0 * ones)
    found = jax.jit(jax.grad(loss, (0, 1)))(*given)
    exact = jax.jit(jax.grad(lambda *a: loss(*jax.tree.map(lambda p: p.astype(float), a)), (0, 1)))
    with jax.enable_x64(True):
        x, dy, kernel = (a.astype(jnp.float64) for a in (x, dy, kernel))
        wanted = exact(*jax.tree.map(lambda a: a.astype(jnp.float64), given))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=2e-2)
