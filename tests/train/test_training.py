"""A training step, held against what it is defined to do."""

import dataclasses
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from compiled_programs import ignore_half_written
from tiny_training import (
    DATA,
    PATHS,
    all_logits,
    batches,
    built,
    kept_by_hand,
    kernel,
    run,
)

from sparsemlp.train.augment import augment, batch_lambda
from sparsemlp.train.evaluation import evaluate
from sparsemlp.train.train_state import Program, epoch_order, initial_state, stream_key
from sparsemlp.train.training import lambdas


@pytest.fixture(scope="module")
def program() -> Program:
    return built()


@pytest.fixture(scope="module")
def plain() -> Program:
    """A program that draws nothing at random."""
    return built(**tiny.PLAIN)


def norm(params: Any) -> float:
    """Square root of the sum of all squares."""
    return math.sqrt(sum(np.square(np.float64(p)).sum() for p in jax.tree.leaves(params)))


def test_golden_metrics(program: Program):
    """The numbers of a training step have not changed.

    If this fails and nothing was meant to change the numbers, the change under test is wrong: find
    out why. If it was meant to (another initialisation, order of random draws, augmentation or
    optimizer), put the new numbers here in the same commit and say in its message why they differ;
    curves that were measured before are then no longer comparable with later ones.
    """
    expected = {1: (2.3077776432, 5.2876557378), 3: (2.3085079193, 5.3932369453)}
    for n_steps, numbers in expected.items():
        state, _ = run(program, initial_state(program), n_steps)
        loss = float(state.totals["loss"]) / (n_steps * tiny.BATCH)
        found = loss, norm(state.params)
        assert found == pytest.approx(numbers, rel=1e-5)


@pytest.mark.parametrize("masked", [True, False])
def test_many_steps_in_one_call_are_as_many_calls_bit_for_bit(masked: bool):
    program = built() if masked else built(**tiny.PLAIN)
    together, healthy = run(program, initial_state(program), 5, masked=masked)
    assert healthy
    single = initial_state(program)
    for step in range(5):
        single, _ = run(program, single, 1, start=step, masked=masked)
    tiny.assert_same_bits(together, single)
    assert int(together.step) == 5
    assert int(together.totals["images"]) == 5 * tiny.BATCH


def test_lambdas_drawn_ahead_are_those_that_each_step_would_draw(program):
    ahead = lambdas(program, jnp.int32(5), 40)
    assert ahead is not None
    for index in (0, 1, 39):
        key = jax.random.split(stream_key(program.seed, "step", jnp.int32(5 + index)))[0]
        alone = batch_lambda(key, program.augmentation)
        assert ahead[index] == alone
        images = jnp.arange(2 * 8 * 8 * 3, dtype=jnp.uint8).reshape(2, 8, 8, 3)
        rest: Any = {"augmentation": program.augmentation, "n_classes": 10}
        rest |= {"mean": (0.5,) * 3, "std": (0.25,) * 3}
        drawn = augment(key, images, jnp.array([1, 2]), **rest)
        given = augment(key, images, jnp.array([1, 2]), **rest, lam=alone)
        tiny.assert_same_bits(drawn, given)
    assert len(set(np.asarray(ahead).tolist())) > 30
    unmixed = dataclasses.replace(program.augmentation, mix_probability=0.0)
    assert lambdas(dataclasses.replace(program, augmentation=unmixed), jnp.int32(5), 40) is None


def test_no_steps_change_nothing(program: Program):
    state, healthy = run(program, initial_state(program), 0)
    tiny.assert_same_bits(state, initial_state(program))
    assert healthy


def test_one_compilation_serves_any_number_of_steps_and_every_mask(program: Program):
    """The optimizer is Python code, so it runs when a program is traced, and never again."""
    n_traces = 0

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        nonlocal n_traces
        n_traces += 1
        return program.optimizer.update(updates, state, params)

    counted = dataclasses.replace(
        program, optimizer=optax.GradientTransformation(program.optimizer.init, update)
    )
    state, _ = run(counted, initial_state(counted), 1)
    n_first = n_traces
    assert n_first > 0
    for n_steps, start in ((4, 1), (2, 0), (5, 0)):
        state, _ = run(counted, state, n_steps, start=start)
    assert n_traces == n_first


def test_the_old_state_gives_its_memory_to_the_new_one(program: Program):
    state = initial_state(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ignore_half_written()
        after, _ = run(program, state, 1)
    changing = (state.params, state.optimizer, state.totals, state.activity, state.step)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(changing))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))


def test_totals_are_sums_over_images(plain: Program):
    """With nothing drawn at random the totals follow from the logits of the first step."""
    start = initial_state(plain)
    chosen = np.asarray(epoch_order(0, jnp.int32(0), tiny.N_TRAIN))[: tiny.BATCH]
    logits = all_logits(plain, start.params, DATA.train_images[chosen], masked=True)
    labels = DATA.train_labels[chosen]
    state, _ = run(plain, start, 1)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_likelihood = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = -log_likelihood[np.arange(tiny.BATCH), labels].sum()
    assert float(state.totals["loss"]) == pytest.approx(loss, rel=1e-5)
    rank = (logits > logits[np.arange(tiny.BATCH), labels][:, None]).sum(axis=1)
    assert int(state.totals["top1"]) == (rank < 1).sum()
    assert int(state.totals["top5"]) == (rank < 5).sum()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_parameter_that_is_not_finite_is_told(program: Program, bad: float):
    start = initial_state(program)
    params = start.params | {
        "head": start.params["head"] | {"bias": jnp.full(10, bad, jnp.float32)}
    }
    _, healthy = run(program, dataclasses.replace(start, params=params), 1)
    assert not healthy


def test_the_average_follows_the_parameters_of_each_step_and_has_masks_of_its_own():
    program = built(ema=0.3)
    state = initial_state(program)
    average = {path: kernel(state.params, path) for path in PATHS}
    tiny.assert_same_bits(state.average["params"], state.params)
    for step in range(3):
        state, _ = run(program, state, 1, start=step)
        decay = min(0.3, (1 + step) / (10 + step))
        for path in PATHS:
            average[path] = decay * average[path] + (1 - decay) * kernel(state.params, path)
    # Four roundings a step of weights below 1.
    tolerance = 3 * 4 * np.finfo(np.float32).eps
    for path in PATHS:
        found = kernel(state.average["params"], path)
        np.testing.assert_allclose(found, average[path], rtol=0, atol=tolerance)
    found = evaluate(program, *state.evaluated, {}, *batches(), masked=True)
    for path in PATHS:
        kept = kept_by_hand(kernel(state.average["params"], path))
        np.testing.assert_array_equal(found.kept[path], kept.reshape(-1))
