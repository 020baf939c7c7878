"""A linear layer as a value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp import ActivationPruning, GradientPruning, select_blocks, sparse_linear
from sparsemlp.layer import Linear
from sparsemlp.masks import GridMask

X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8)), jnp.float32)
KERNEL = jnp.asarray(np.random.default_rng(1).normal(size=(8, 4)), jnp.float32)
MASK = select_blocks(KERNEL, (2, 2), 0.5)
FLAGS = GridMask(MASK.grid(), MASK.kernel_shape, MASK.block, jnp.bool_(True), jnp.bool_(False))


def test_it_is_the_operation_and_a_pytree():
    layer = Linear(KERNEL, jnp.ones(4), MASK, "straight_through")
    expected = sparse_linear(X, KERNEL, jnp.ones(4), mask=MASK)
    np.testing.assert_array_equal(layer(X), expected)
    leaves, structure = jax.tree.flatten(layer)
    again = jax.tree.unflatten(structure, leaves)
    assert len(leaves) == 3
    assert again.backward == "straight_through"
    np.testing.assert_array_equal(jax.jit(lambda own, x: own(x))(again, X), expected)


@pytest.mark.parametrize(
    ("layer", "takes"),
    [
        (Linear(KERNEL), True),
        (Linear(KERNEL, mask=MASK), True),
        (Linear(KERNEL, mask=MASK, backward="straight_through"), True),
        (Linear(KERNEL, mask=MASK, backward="dense"), False),
        (Linear(KERNEL, mask=FLAGS), False),
        (Linear(KERNEL, activation=ActivationPruning((1, 2), 0.5)), False),
        (Linear(KERNEL, gradient=GradientPruning(2, 4)), False),
    ],
)
def test_scales_are_folded_where_no_gradient_changes(layer, takes):
    assert layer.takes_scales == takes


@pytest.mark.parametrize("backward", ["masked", "straight_through"])
def test_the_gradient_of_the_kept_kernel_goes_where_the_backward_says(backward):
    def total(kernel):
        return jnp.sum(Linear(kernel, mask=MASK, backward=backward).kept_kernel())

    mask = np.asarray(MASK.dense())
    np.testing.assert_array_equal(total(KERNEL), jnp.sum(jnp.where(mask, KERNEL, 0)))
    everywhere = backward == "straight_through"
    np.testing.assert_array_equal(jax.grad(total)(KERNEL), np.where(mask | everywhere, 1.0, 0.0))
