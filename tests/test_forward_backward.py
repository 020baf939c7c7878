"""Loss, logits and gradients of a batch are those of the model and its loss, written down here."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from sparsemlp import forward_backward
from sparsemlp.plan import select_masks
from sparsemlp.program import build_program
from sparsemlp.train_state import Program, initial_state

compilation_cache = tiny.compilation_cache
KEY = jax.random.key(3)
RNGS = {"drop_path": KEY, "gradient": KEY}


@pytest.fixture(scope="module")
def program() -> Program:
    return build_program(tiny.settings(engine="reference"), tiny.dataset())


def test_the_loss_is_the_mean_over_the_batch_and_the_gradients_are_its_own(program: Program):
    params = initial_state(program).params
    masks = select_masks(params, program.model.plan)
    rng = np.random.default_rng(0)
    inputs = jnp.float32(rng.normal(size=(6, 8, 8, 3)))
    targets = jnp.float32(rng.dirichlet(np.ones(10), 6))

    def defined(params: Any) -> Any:
        logits: Any = program.model.apply({"params": params, "masks": masks}, inputs)
        return -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)), logits

    (expected, logits), gradients = jax.jit(jax.value_and_grad(defined, has_aux=True))(params)
    found = jax.jit(
        lambda p: forward_backward.loss_and_gradients(program, p, masks, {}, inputs, targets, RNGS)
    )(params)
    # Sums of at most 64 terms in float32, in another order.
    tolerance = 64 * np.finfo(np.float32).eps
    np.testing.assert_allclose(found[0], expected, rtol=tolerance)
    np.testing.assert_allclose(found[1], logits, rtol=0, atol=tolerance)
    for ours, theirs in zip(jax.tree.leaves(found[3]), jax.tree.leaves(gradients), strict=True):
        scale = float(jnp.max(jnp.abs(theirs))) or 1.0
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * scale)
    tested = jax.jit(lambda p: forward_backward.test_logits(program, p, masks, {}, inputs))(params)
    np.testing.assert_allclose(tested, logits, rtol=0, atol=tolerance)
