"""What the rules of a layer make of its activation and of its output's gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_doubles import Noting, put_first

from sparsemlp import ActivationPruning, GradientPruning, InputError, sparse_linear
from sparsemlp.activations import CompactActivation
from sparsemlp.operand_rules import OperandRules, operand_rules

X = jax.random.normal(jax.random.key(0), (4, 8))
DY = jax.random.normal(jax.random.key(1), (4, 12))
KERNEL = jax.random.normal(jax.random.key(2), (8, 12))


def assert_product(found: jax.Array, a: jax.Array, b: jax.Array) -> None:
    """A product of two matrices, but for a rounding of each sum's terms."""
    a64, b64 = np.asarray(a, np.float64), np.asarray(b, np.float64)
    bound = a64.shape[1] * np.finfo(np.float32).eps * (np.abs(a64) @ np.abs(b64))
    assert (np.abs(np.asarray(found) - a64 @ b64) <= bound).all()


def test_without_rules_everything_is_kept_and_the_gradients_are_the_dense_ones():
    rules = OperandRules(-1)
    assert rules.keep(X) is X
    assert rules.prune(DY, None) is DY
    assert_product(rules.input_gradient(DY, KERNEL, None), DY, KERNEL.T)
    assert_product(rules.kernel_gradient(X, DY), X.T, DY)


def test_of_a_pruned_activation_only_the_kept_blocks_reach_the_gradient():
    rules = OperandRules(-1, activation=ActivationPruning((2, 2), 0.5))
    kept = rules.keep(X.at[:2].set(0.0))
    assert isinstance(kept, CompactActivation)
    assert_product(rules.kernel_gradient(kept, DY), X[2:].T, DY[2:])


def test_a_rule_that_drops_nothing_keeps_the_activation_itself():
    assert OperandRules(-1, activation=ActivationPruning((2, 2), 0.0)).keep(X) is X


def test_the_gradient_of_x_uses_two_of_four_outputs():
    rules = OperandRules(-1, gradient=GradientPruning(2, 4, "magnitude"))
    pruned = rules.prune(DY, None)
    assert (jnp.count_nonzero(pruned.reshape(4, 3, 4), axis=-1) == 2).all()
    assert_product(rules.input_gradient(DY, KERNEL, None), pruned, KERNEL.T)


def test_an_engine_is_chosen_only_where_there_is_a_rule():
    assert operand_rules(-1, None, None, "mosaic", (8, 12), "float32") == OperandRules(-1)
    gradient = GradientPruning(2, 4, "magnitude")
    with pytest.raises(InputError, match="mosaic"):
        operand_rules(-1, None, gradient, "mosaic", (8, 12), "float32")
    assert operand_rules(-1, None, gradient, "reference", (8, 12), "float32").gradient == gradient


def test_the_engine_that_is_asked_for_applies_the_rules(monkeypatch):
    noting = Noting()
    put_first(monkeypatch, noting)
    rules = {"activation": ActivationPruning((2, 2), 0.5), "gradient": GradientPruning(2, 4)}

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(sparse_linear(x, kernel, engine="noting", **rules)))

    jax.grad(loss, argnums=(0, 1))(jnp.ones((4, 8)), jnp.ones((8, 12)))
    assert noting.asked == {"largest_blocks", "compact_gradient", "pruned_input_gradient"}
