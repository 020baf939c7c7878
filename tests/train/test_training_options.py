"""What options of masks and rules do to one training step, held against their definitions."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tiny
from tiny_training import PATHS, RATE, built, kept_by_hand, kernel, on_device, spread

from sparsemlp.mask_trees import select_masks
from sparsemlp.train.augment import normalize
from sparsemlp.train.train_state import Program, TrainState, initial_state
from sparsemlp.train.training import train_step

STRAIGHT_THROUGH: dict[str, Any] = tiny.PLAIN | {"backward": "straight_through"}

jitted_step = jax.jit(train_step, static_argnums=0, static_argnames="masked")


def batch() -> tuple[jax.Array, jax.Array]:
    images, labels = on_device()
    return images[: tiny.BATCH], labels[: tiny.BATCH]


def stepped(program: Program, state: TrainState) -> TrainState:
    return jitted_step(program, state, *batch(), masked=True)


def kept_weights(params: Any, path: str) -> np.ndarray:
    """Which weights of a kernel the l2 norm keeps, bool `[in, out]`."""
    return spread(kept_by_hand(kernel(params, path)))


def test_blocks_are_scored_by_weight_times_gradient_of_the_step():
    program = built(**STRAIGHT_THROUGH, score="gradient")
    state = initial_state(program)
    # Before the first step their norms stand in for the gradients.
    masks = select_masks(state.params, built(**STRAIGHT_THROUGH).model.plan)
    images, labels = batch()

    def loss(params: Any) -> jax.Array:
        inputs = normalize(images, program.mean, program.std)
        logits: Any = program.model.apply({"params": params, "masks": masks}, inputs)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
        return -jnp.mean(chosen)

    gradients = jax.jit(jax.grad(loss))(state.params)
    memory = stepped(program, state).memory
    rows, cols = tiny.BLOCK
    for path in PATHS:
        product = kernel(state.params, path) * kernel(gradients, path)
        n_in, n_out = product.shape
        tiles = product.reshape(n_in // cols, cols, n_out // rows, rows)
        wanted = np.abs(tiles.sum(axis=(1, 3))).reshape(-1)
        np.testing.assert_allclose(memory["scores"][path], wanted, atol=1e-5 * wanted.max())


def test_dropped_weights_alone_decay():
    decay, more = 10.0, {"optimizer": "sgd", "weight_decay": 0.0}
    program = built(**STRAIGHT_THROUGH, **more)
    state = initial_state(program)
    plain = stepped(program, state).params
    decayed = stepped(built(**STRAIGHT_THROUGH, **more, dropped_decay=decay), state).params
    for path in PATHS:
        weights = kernel(state.params, path)
        wanted = np.where(kept_weights(state.params, path), 0.0, -RATE * decay * weights)
        found = kernel(decayed, path) - kernel(plain, path)
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        assert np.abs(wanted).max() > 1e-4


def test_moments_of_a_block_that_returns_begin_at_zero():
    program = built(**tiny.PLAIN, moments="reset")
    before = stepped(program, initial_state(program))
    # As if every block that is kept now had been dropped by the last step.
    none_kept = {"kept": jax.tree.map(jnp.zeros_like, before.memory["kept"])}
    reset = stepped(program, dataclasses.replace(before, memory=none_kept))
    keeps = stepped(built(**tiny.PLAIN), dataclasses.replace(before, memory={}))
    first, found, usual = (
        optax.tree_utils.tree_get(state.optimizer, "mu") for state in (before, reset, keeps)
    )
    for path in PATHS:
        moved = np.where(kept_weights(before.params, path), 0.9 * kernel(first, path), 0.0)
        difference = kernel(usual, path) - kernel(found, path)
        np.testing.assert_allclose(difference, moved, rtol=1e-4, atol=1e-9)
        assert np.abs(moved).max() > 1e-7


def test_every_step_prunes_the_gradient_at_random_anew():
    rule = {"gradient": "2:4", "gradient_method": "random"}
    for more, is_random in (({}, False), (rule, True)):
        program = built(**tiny.PLAIN, **more)
        state = initial_state(program)
        first, again, later = (
            stepped(program, dataclasses.replace(state, step=jnp.int32(step))).params
            for step in (0, 0, 1)
        )
        tiny.assert_same_bits(first, again)
        (path, *_) = PATHS
        differs = bool(np.any(kernel(first, path) != kernel(later, path)))
        assert differs == is_random
