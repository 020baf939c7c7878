"""The gradients of a layer are the layer's own, from what it keeps."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from sparsemlp import GradientPruning, GridMask, select_blocks, sparse_linear
from sparsemlp.differentiable import Layer, differentiable
from sparsemlp.engines import choose_engine
from sparsemlp.masked_kernel import MaskedKernel, masked_kernel

X, KERNEL, BIAS, DY = jnp.arange(1.0, 5.0), jnp.full(4, 2.0), jnp.full(4, 3.0), jnp.full(4, 5.0)


@dataclasses.dataclass(frozen=True)
class Scaling(Layer):
    """`y = x w + b`, with gradients that no rule of differentiation gives."""

    def keep(self, x: Array) -> dict[str, Array]:
        return {"first": x[:1]}

    def product(
        self, x: Array, kernel: Array, bias: Array | None, masked: MaskedKernel | None
    ) -> Array:
        y = x * kernel
        return y if bias is None else y + bias

    def input_gradient(
        self, dy: Array, kernel: Array, masked: MaskedKernel | None, rng: Array | None
    ) -> Array:
        return dy * kernel * (10 if rng is None else 100) * (1 if masked is None else 7)

    def parameter_gradients(
        self, kept: dict[str, Array], dy: Array, masked: MaskedKernel | None, *, has_bias: bool
    ) -> tuple[Array, Array | None]:
        return jnp.full(4, kept["first"][0]), 1000 * dy if has_bias else None


def test_the_output_is_that_of_the_layer_and_so_are_the_gradients():
    y, pull_back = jax.vjp(
        lambda x, kernel, bias: differentiable(Scaling(), x, kernel, bias, None, None),
        X,
        KERNEL,
        BIAS,
    )
    np.testing.assert_array_equal(y, [5, 7, 9, 11])
    dx, dw, db = pull_back(DY)
    np.testing.assert_array_equal(dx, np.full(4, 100))
    np.testing.assert_array_equal(dw, np.ones(4))
    np.testing.assert_array_equal(db, np.full(4, 5000))


@pytest.mark.parametrize(("rng", "factor"), [(None, 10), (jax.random.key(0), 100)])
def test_without_a_bias_it_has_no_gradient_and_key_and_mask_reach_that_of_x(rng, factor):
    choose = functools.partial(choose_engine, n_rows=1)
    mask = select_blocks(jnp.ones((4, 4)), (2, 2), 0.5)
    masked = masked_kernel(mask, -1, "float32", "masked", "reference", choose)
    _, pull_back = jax.vjp(lambda x: differentiable(Scaling(), x, KERNEL, None, masked, rng), X)
    np.testing.assert_array_equal(pull_back(DY)[0], np.full(4, 5 * 2 * factor * 7))


def looped(loss, x, mapped):
    """The gradient of the sum over what is mapped, one after another."""
    return sum(jax.grad(loss)(x, each) for each in mapped)


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_the_gradient_of_a_sum_over_keys_alone_is_the_sum_of_gradients(make):
    keys = jax.random.split(make(0), 3)
    kernel = jax.random.normal(jax.random.key(1), (8, 16))
    mask, rule = select_blocks(kernel, (8, 8), 0.5), GradientPruning(2, 4, "random")

    def loss(x, key):
        y = sparse_linear(x, kernel, mask=mask, gradient=rule, rng=key)
        return jnp.sum(jnp.sin(y))

    x = jax.random.normal(jax.random.key(2), (4, 8))
    found = jax.grad(lambda x: jnp.sum(jax.vmap(loss, (None, 0))(x, keys)))(x)
    np.testing.assert_allclose(found, looped(loss, x, keys), rtol=1e-5)


def test_the_gradient_of_a_sum_over_backward_passes_alone_is_the_sum_of_gradients():
    flags = jnp.array([[True, True], [False, False], [True, False]])
    kernel = jax.random.normal(jax.random.key(1), (8, 16))
    grid = select_blocks(kernel, (8, 8), 0.5).grid()
    x = jax.random.normal(jax.random.key(2), (4, 8))

    def loss(kernel, flags):
        mask = GridMask(grid, (8, 16), (8, 8), *flags)
        return jnp.sum(jnp.sin(sparse_linear(x, kernel, mask=mask)))

    found = jax.grad(lambda w: jnp.sum(jax.vmap(loss, (None, 0))(w, flags)))(kernel)
    np.testing.assert_allclose(found, looped(loss, kernel, flags), rtol=1e-5)
