"""An evaluation, held against what it is defined to do."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from tiny_training import DATA, PATHS, all_logits, batches, built, kept_by_hand, kernel, run, spread

from sparsemlp.schedule import MASKED
from sparsemlp.train.evaluation import evaluate, evaluation_batches
from sparsemlp.train.train_state import Program, initial_state


@pytest.fixture(scope="module")
def program() -> Program:
    return built()


@pytest.fixture(scope="module")
def trained(program: Program) -> Any:
    """Parameters after a few steps, which guess better than chance or worse, but not alike."""
    state, _ = run(program, initial_state(program), 5)
    return state.params


@pytest.mark.parametrize("masked", [True, False])
def test_evaluation_is_a_recount_with_the_masks_of_the_parameters_it_is_given(
    program: Program, trained: Any, masked: bool
):
    for params in (initial_state(program).params, trained):
        found = evaluate(program, params, {}, {}, *batches(), masked=masked)
        logits = all_logits(program, params, DATA.test_images, masked=masked)
        guesses = np.argsort(-logits, axis=1)
        right = guesses == DATA.test_labels[:, None]
        assert int(found.top1) == right[:, :1].sum()
        assert int(found.top5) == right[:, :5].sum()
        chosen = logits[np.arange(len(logits)), DATA.test_labels]
        losses = np.log(np.exp(logits).sum(axis=1)) - chosen
        assert float(found.loss) == pytest.approx(losses.sum(), rel=1e-5)
        dropped = 0.0
        for path in PATHS:
            weights = kernel(params, path)
            kept = kept_by_hand(weights) if masked else np.ones_like(found.kept[path])
            np.testing.assert_array_equal(found.kept[path], kept.reshape(-1))
            if masked:
                dropped += np.square(weights[~spread(kept)]).sum()
        assert float(found.dropped_norm) == pytest.approx(math.sqrt(dropped), rel=1e-6)


def test_frozen_blocks_are_evaluated_whatever_the_parameters_became(trained: Any):
    program = built(freeze_epoch=12)
    memory = initial_state(program).memory
    smallest = {path: ~kept_by_hand(kernel(trained, path)).reshape(-1) for path in PATHS}
    memory = memory | {"kept": {path: jnp.asarray(kept) for path, kept in smallest.items()}}
    frozen = program.at_phase(dataclasses.replace(MASKED, frozen=True))
    found = evaluate(frozen, trained, {}, memory, *batches(), masked=True)
    for path in PATHS:
        np.testing.assert_array_equal(found.kept[path], smallest[path])


def test_masks_matter_to_an_evaluation(program: Program, trained: Any):
    """Otherwise the recount above would prove nothing."""
    one, other = (
        all_logits(program, trained, DATA.test_images, masked=masked) for masked in (True, False)
    )
    assert np.abs(one - other).max() > 1e-4


@pytest.mark.parametrize("batch_size", [1, 7, 8, 20])
def test_test_batches_hold_every_image_once(batch_size: int):
    images, labels = evaluation_batches(DATA.test_images, DATA.test_labels, batch_size)
    assert images.shape[:2] == labels.shape == (math.ceil(20 / batch_size), batch_size)
    counts = np.asarray(labels).reshape(-1) >= 0
    np.testing.assert_array_equal(np.asarray(labels).reshape(-1)[counts], DATA.test_labels)
    flat = np.asarray(images).reshape(-1, *DATA.test_images.shape[1:])
    np.testing.assert_array_equal(flat[counts], DATA.test_images)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_collapsed_model_scores_chance(program: Program, value: float):
    """Constant logits are a guess of one class, not of all: 10% and 50% of ten equal classes."""
    params = initial_state(program).params
    constant = jax.tree.map(jnp.zeros_like, params)
    constant["head"]["bias"] = jnp.full(10, value, jnp.float32)
    found = evaluate(program, constant, {}, {}, *batches(), masked=True)
    assert np.bincount(DATA.test_labels).tolist() == [2] * 10
    assert (int(found.top1), int(found.top5)) == (2, 10)


def test_a_model_of_nan_guesses_nothing_right(program: Program):
    params = jax.tree.map(lambda p: jnp.full_like(p, jnp.nan), initial_state(program).params)
    found = evaluate(program, params, {}, {}, *batches(), masked=True)
    assert (int(found.top1), int(found.top5)) == (0, 0)


def test_rows_without_a_label_count_nowhere_and_batches_add_up(program: Program, trained: Any):
    """Two halves of a test set and the whole, which the last filled batch would spoil."""
    images, labels = batches()
    whole = evaluate(program, trained, {}, {}, images, labels, masked=True)
    parts = [
        evaluate(program, trained, {}, {}, images[i : i + 1], labels[i : i + 1], masked=True)
        for i in range(len(labels))
    ]
    total = functools.reduce(lambda one, other: one.with_batch(other), parts)
    assert int(whole.images) == int(total.images) == len(DATA.test_labels)
    assert (int(whole.top1), int(whole.top5)) == (int(total.top1), int(total.top5))
    np.testing.assert_allclose(whole.loss, total.loss, rtol=1e-6)
    tiny.assert_same_bits(whole.kept, total.kept)
