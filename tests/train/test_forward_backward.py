"""Loss, logits and gradients of a batch are those of the model and its loss, written down here."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from sparsemlp import InputError
from sparsemlp.configuration.program import build_program
from sparsemlp.mask_trees import select_masks
from sparsemlp.train import forward_backward
from sparsemlp.train.train_state import Program, initial_state

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
    tested = jax.jit(lambda p: forward_backward.evaluation_logits(program, p, masks, {}, inputs))(
        params
    )
    np.testing.assert_allclose(tested, logits, rtol=0, atol=tolerance)


DRAWING: dict[str, Any] = {
    "engine": "reference",
    "drop_path": 0.4,
    "gradient": "1:2",
    "gradient_method": "random",
}
"""Everything that draws at random in a forward and backward pass."""


@functools.cache
def start() -> tuple[Program, Any]:
    """A program that draws, and its first parameters."""
    program = build_program(tiny.settings(**DRAWING), tiny.dataset())
    return program, initial_state(program).params


@functools.cache
def drawing(*, remat: bool = False, at_once: int | None = None) -> tuple[Any, Any]:
    """Loss, logits and gradients of 7 images, by a model that draws; and those of another key."""
    program, params = start()
    model: Any = program.model
    program = dataclasses.replace(program, model=model.clone(remat=remat), at_once=at_once)
    masks = select_masks(params, program.model.plan)
    rng = np.random.default_rng(0)
    inputs = jnp.float32(rng.normal(size=(7, 8, 8, 3)))
    targets = jnp.float32(rng.dirichlet(np.ones(10), 7))

    @jax.jit
    def computed(params: Any, key: Any) -> Any:
        rngs = {"drop_path": key, "gradient": jax.random.fold_in(key, 1)}
        arguments = (program, params, masks, {}, inputs, targets, rngs)
        return forward_backward.loss_and_gradients(*arguments)

    return computed(params, KEY), computed(params, jax.random.key(4))


def differences(found: Any, expected: Any) -> list[float]:
    """The largest of each array, relative to the largest entry of it."""
    return [
        float(jnp.max(jnp.abs(a - b)) / (jnp.max(jnp.abs(b)) or 1))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    ]


@pytest.mark.parametrize("changes", [{"remat": True}, {"at_once": 4}, {"at_once": 2}], ids=str)
def test_computing_again_or_in_parts_changes_no_number_drawn_at_random(changes: dict[str, Any]):
    """7 images make parts of 4 and of 2, the last of which is filled up."""
    found, expected = drawing(**changes)[0], drawing()[0]
    # Sums of at most 64 terms, about ten operations deep, in another order.
    assert max(differences(found, expected)) < 10 * 64 * np.finfo(np.float32).eps
    # Another draw is far from it, so the numbers above are drawn alike.
    assert max(differences(drawing()[1], expected)) > 0.01


def test_a_device_computes_its_share_of_what_is_computed_at_once():
    program = build_program(tiny.settings(accumulate=3), tiny.dataset())
    assert program.at_once == 3
    # 8 images in parts of 3, 3 and 2; 4 in two of 2; 7 in 3, 3 and 1, filled up.
    assert [program.images_at_once(n) for n in (8, 4, 7, 3, 1)] == [3, 2, 3, 3, 1]


def test_batch_statistics_need_a_whole_batch(program: Program):
    """Parts of a batch would each have statistics of their own, and leave none behind."""
    images = jnp.zeros((tiny.BATCH, *tiny.dataset().image_shape))
    targets = jnp.zeros((tiny.BATCH, program.model.n_classes))
    in_parts = dataclasses.replace(program, at_once=tiny.BATCH // 2)
    with pytest.raises(InputError, match="statistics of its batch"):
        forward_backward.loss_and_gradients(
            in_parts, {}, {}, {"mean": jnp.zeros(3)}, images, targets, RNGS
        )
