"""What the rules of a layer make of its activation and of its output's gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_doubles import Noting, put_first

from sparsemlp import ActivationPruning, GradientPruning, InputError, sparse_linear
from sparsemlp.activations import CompactActivation
from sparsemlp.linear_layer import LinearLayer

X = jax.random.normal(jax.random.key(0), (4, 8))
DY = jax.random.normal(jax.random.key(1), (4, 12))
KERNEL = jax.random.normal(jax.random.key(2), (8, 12))


def assert_product(found: jax.Array, a: jax.Array, b: jax.Array) -> None:
    """A product of two matrices, but for a rounding of each sum's terms."""
    a64, b64 = np.asarray(a, np.float64), np.asarray(b, np.float64)
    bound = a64.shape[1] * np.finfo(np.float32).eps * (np.abs(a64) @ np.abs(b64))
    assert (np.abs(np.asarray(found) - a64 @ b64) <= bound).all()


def kernel_gradient(layer: LinearLayer, kept: jax.Array | CompactActivation) -> jax.Array:
    dw, db = layer.parameter_gradients(kept, DY, None, has_bias=False)
    assert db is None
    return dw


def test_without_rules_everything_is_kept_and_the_gradients_are_the_dense_ones():
    layer = LinearLayer(-1)
    assert layer.keep(X) is X
    assert_product(layer.input_gradient(DY, KERNEL, None, None), DY, KERNEL.T)
    assert_product(kernel_gradient(layer, X), X.T, DY)
    dw, db = layer.parameter_gradients(X, DY, None, has_bias=True)
    assert_product(dw, X.T, DY)
    assert db is not None
    np.testing.assert_allclose(db, DY.sum(axis=0), rtol=1e-5, atol=1e-6)


def test_of_a_pruned_activation_only_the_kept_blocks_reach_the_gradient():
    layer = LinearLayer(-1, activation=ActivationPruning((2, 2), 0.5))
    kept = layer.keep(X.at[:2].set(0.0))
    assert isinstance(kept, CompactActivation)
    assert_product(kernel_gradient(layer, kept), X[2:].T, DY[2:])


def test_a_rule_that_drops_nothing_keeps_the_activation_itself():
    assert LinearLayer(-1, activation=ActivationPruning((2, 2), 0.0)).keep(X) is X


def test_the_gradient_of_x_uses_two_of_four_outputs():
    layer = LinearLayer(-1, gradient=GradientPruning(2, 4, "magnitude"))
    groups = np.asarray(DY).reshape(4, 3, 4)
    third = np.sort(np.abs(groups), axis=-1)[..., 2:3]
    pruned = jnp.asarray(np.where(np.abs(groups) >= third, groups, 0).reshape(4, 12))
    assert_product(layer.input_gradient(DY, KERNEL, None, None), pruned, KERNEL.T)


def test_an_engine_is_chosen_only_where_there_is_a_rule():
    gradient = GradientPruning(2, 4, "magnitude")
    assert_product(sparse_linear(X, KERNEL, engine="mosaic"), X, KERNEL)
    with pytest.raises(InputError, match="mosaic"):
        sparse_linear(X, KERNEL, gradient=gradient, engine="mosaic")
    assert_product(sparse_linear(X, KERNEL, gradient=gradient, engine="reference"), X, KERNEL)


def test_the_engine_that_is_asked_for_applies_the_rules(monkeypatch):
    noting = Noting()
    put_first(monkeypatch, noting)
    rules = {"activation": ActivationPruning((2, 2), 0.5), "gradient": GradientPruning(2, 4)}

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(sparse_linear(x, kernel, engine="noting", **rules)))

    jax.grad(loss, argnums=(0, 1))(jnp.ones((4, 8)), jnp.ones((8, 12)))
    assert noting.asked == {"largest_blocks", "compact_gradient", "pruned_input_gradient"}
