"""What the rules of a layer make of its activation and of its output's gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp import ActivationPruning, GradientPruning, InputError
from sparsemlp.activations import CompactActivation
from sparsemlp.operand_rules import OperandRules, operand_rules

X = jax.random.normal(jax.random.key(0), (4, 8))
DY = jax.random.normal(jax.random.key(1), (4, 12))
KERNEL = jax.random.normal(jax.random.key(2), (8, 12))


def test_without_rules_everything_is_kept_and_the_gradients_are_the_dense_ones():
    rules = OperandRules(-1)
    assert rules.keep(X) is X
    assert rules.prune(DY, None) is DY
    np.testing.assert_allclose(rules.input_gradient(DY, KERNEL, None), DY @ KERNEL.T, rtol=1e-5)
    np.testing.assert_allclose(rules.kernel_gradient(X, DY), X.T @ DY, rtol=1e-5)


def test_of_a_pruned_activation_only_the_kept_blocks_reach_the_gradient():
    rules = OperandRules(-1, activation=ActivationPruning((2, 2), 0.5))
    kept = rules.keep(X.at[:2].set(0.0))
    assert isinstance(kept, CompactActivation)
    np.testing.assert_allclose(rules.kernel_gradient(kept, DY), X[2:].T @ DY[2:], rtol=1e-5)


def test_a_rule_that_drops_nothing_keeps_the_activation_itself():
    assert OperandRules(-1, activation=ActivationPruning((2, 2), 0.0)).keep(X) is X


def test_the_gradient_of_x_uses_two_of_four_outputs():
    rules = OperandRules(-1, gradient=GradientPruning(2, 4, "magnitude"))
    pruned = rules.prune(DY, None)
    assert (jnp.count_nonzero(pruned.reshape(4, 3, 4), axis=-1) == 2).all()
    found = rules.input_gradient(DY, KERNEL, None)
    np.testing.assert_allclose(found, pruned @ KERNEL.T, rtol=1e-5, atol=1e-6)


def test_an_engine_is_chosen_only_where_there_is_a_rule():
    assert operand_rules(-1, None, None, "mosaic", (8, 12), "float32") == OperandRules(-1)
    gradient = GradientPruning(2, 4, "magnitude")
    with pytest.raises(InputError, match="mosaic"):
        operand_rules(-1, None, gradient, "mosaic", (8, 12), "float32")
    assert operand_rules(-1, None, gradient, "reference", (8, 12), "float32").gradient == gradient
