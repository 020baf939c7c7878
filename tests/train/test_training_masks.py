"""The masks of a training step: when they are selected, and what of the gradient they leave."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import test_training
import tiny
from tiny_training import PATHS, RATE, built, kept_by_hand, kernel, on_device, run, spread

from sparsemlp.plan import all_rules
from sparsemlp.rules import BlockMasking
from sparsemlp.schedule import LEVELS, Phase
from sparsemlp.train.train_state import Program, initial_state
from sparsemlp.train.training import train_step

program, plain = test_training.program, test_training.plain


def recorder() -> optax.GradientTransformation:
    """An optimizer that leaves the parameters alone and keeps the gradient as its state."""
    return optax.GradientTransformation(
        lambda params: jax.tree.map(jnp.zeros_like, params),
        lambda updates, state, params=None: (jax.tree.map(jnp.zeros_like, updates), updates),
    )


@functools.cache
def gradients(backward: str, masked: bool = True) -> tuple[Any, Any]:
    """Parameters and loss gradient of the first training step."""
    program = built(backward=backward, **tiny.PLAIN)
    program = dataclasses.replace(program, optimizer=recorder())
    step = jax.jit(
        lambda state, images, labels: train_step(program, state, images, labels, masked=masked)
    )
    images, labels = on_device()
    after = step(initial_state(program), images[: tiny.BATCH], labels[: tiny.BATCH])
    return after.params, after.optimizer


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("backward", ["masked", "dense", "straight_through"])
def test_the_loss_gradient_is_exactly_zero_on_dropped_blocks_if_the_backward_pass_is_masked(
    backward: str, path: str
):
    params, gradient = gradients(backward)
    kept = spread(kept_by_hand(kernel(params, path)))
    found = kernel(gradient, path)
    assert kept.mean() == 0.5
    assert np.any(found[kept] != 0)
    assert np.any(found[~kept] != 0) == (backward != "masked")


def test_a_dense_step_has_gradients_everywhere():
    _, gradient = gradients("masked", masked=False)
    assert all(np.all(kernel(gradient, path) != 0) for path in PATHS)


@pytest.mark.parametrize("path", PATHS)
def test_dropped_weights_still_move_by_weight_decay_through_adam(program: Program, path: str):
    """Coupled L2 alone is left there: Adam normalises it to the learning rate, towards zero."""
    before = kernel(initial_state(program).params, path)
    state, _ = run(program, initial_state(program), 1)
    moved = kernel(state.params, path) - before
    dropped = ~spread(kept_by_hand(before))
    # |update| = lr * g / (g + eps): below lr by eps / g, g = 1e-4 * weight.
    reached = np.abs(before) * 1e-4 / (np.abs(before) * 1e-4 + 1e-8)
    np.testing.assert_allclose(
        moved[dropped], (-RATE * np.sign(before) * reached)[dropped], rtol=1e-4
    )


def test_masks_are_selected_anew_at_every_step(program: Program):
    """Activity adds up the masks of the parameters before each step."""
    state = initial_state(program)
    expected: dict[str, Any] = dict.fromkeys(PATHS, 0)
    seen = {path: set() for path in PATHS}
    for step in range(5):
        for path in PATHS:
            kept = kept_by_hand(kernel(state.params, path)).reshape(-1)
            expected[path] = expected[path] + kept.astype(int)
            seen[path].add(kept.tobytes())
        state, _ = run(program, state, 1, start=step)
    for path in PATHS:
        np.testing.assert_array_equal(state.activity[path], expected[path])
        n_blocks = expected[path].size
        assert int(state.activity[path].sum()) == 5 * math.ceil(n_blocks * (1 - tiny.RATIO))
    assert any(len(masks) > 1 for masks in seen.values())


def test_a_dense_step_counts_no_masks_and_equals_that_of_a_dense_model(plain: Program):
    dense = built(ratio=0.0, **tiny.PLAIN)
    state, _ = run(plain, initial_state(plain), 2, masked=False)
    other, _ = run(dense, initial_state(dense), 2)
    tiny.assert_same_bits((state.params, state.totals), (other.params, other.totals))
    assert not any(np.any(count) for count in state.activity.values())
    assert all(np.all(kept) for kept in state.last_kept.values())
    assert other.activity == {}


def test_frozen_straight_through_trains_the_kept_weights_as_ever_and_the_others_no_more():
    masking: dict[str, Any] = {"mask_start_epoch": 1, "freeze_epoch": 2}
    changes = {"backward": "straight_through", "weight_decay": 0.0}
    program = built(**tiny.PLAIN | masking | changes)
    held = program.at_phase(Phase(LEVELS, frozen=True))
    rules = [rule for rule in all_rules(held.model.plan) if isinstance(rule, BlockMasking)]
    assert {rule.backward for rule in rules} == {"masked"}
    start, _ = run(program, initial_state(program), 1)
    before = jax.tree.map(np.array, start)
    # The same masks with the gradient of every weight.
    whole, _ = run(dataclasses.replace(program, frozen=True), start, 3)
    found, _ = run(held, jax.tree.map(jnp.asarray, before), 3)
    for path in PATHS:
        one, other, first = (kernel(s.params, path) for s in (found, whole, before))
        rows, cols = tiny.BLOCK
        grid = before.memory["kept"][path].reshape(one.shape[0] // cols, one.shape[1] // rows)
        kept = spread(grid)
        assert 0 < kept.sum() < kept.size
        np.testing.assert_allclose(one[kept], other[kept], rtol=1e-4, atol=1e-6)
        assert np.any(one[kept] != first[kept])
        assert np.any(other[~kept] != one[~kept])
    np.testing.assert_allclose(found.totals["loss"], whole.totals["loss"], rtol=1e-5)


def test_training_does_not_touch_the_masks_of_the_last_epoch(program: Program):
    start = initial_state(program)
    odd = {path: jnp.arange(kept.size) % 2 == 0 for path, kept in start.last_kept.items()}
    expected = {path: np.asarray(kept) for path, kept in odd.items()}
    state, _ = run(program, dataclasses.replace(start, last_kept=odd), 2)
    jax.tree.map(np.testing.assert_array_equal, state.last_kept, expected)
