"""A population's programs do to each member what its own program does to it."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from sparsemlp.configuration.program import build_program
from sparsemlp.plan import all_rules
from sparsemlp.planned_kernels import block_counts
from sparsemlp.populations.population_program import (
    evaluate_population,
    population_of,
    population_orders,
    population_states,
    train_population_steps,
)
from sparsemlp.rules import BlockMasking
from sparsemlp.train.evaluation import evaluate, evaluation_batches
from sparsemlp.train.train_state import Program, TrainState, epoch_order, initial_state
from sparsemlp.train.training import train_steps

DATA = tiny.dataset()
COMMON: dict[str, Any] = {
    "engine": "reference",
    "optimizer": "sgd",
    "lr": 0.05,
    "warmup_epochs": 0,
    "drop_path": 0.3,
    "ema": 0.9,
    "accumulate": 2,
}
MEMBERS: list[dict[str, Any]] = [
    {"ratio": 0.8, "backward": "masked", "seed": 2**32 - 1},
    {"ratio": 0.3, "backward": "dense", "seed": 3},
    {"ratio": 0.5, "backward": "straight_through", "seed": 3},
    {"ratio": 0.0, "backward": "masked", "seed": 3},
]


@functools.cache
def program_of(index: int) -> Program:
    return build_program(tiny.settings(**COMMON | MEMBERS[index]), DATA)


def programs(members: list[dict[str, Any]]) -> list[Program]:
    return [program_of(MEMBERS.index(member)) for member in members]


def member(stacked: TrainState, index: int) -> TrainState:
    own = jax.tree.map(lambda a: a[index], dataclasses.replace(stacked, step=jnp.zeros(99)))
    return dataclasses.replace(own, step=jnp.copy(stacked.step))


def test_the_start_of_each_member_is_that_of_its_run_to_the_bit():
    runs = programs(MEMBERS[:2])
    program, differences = population_of(runs)
    states = population_states(program, differences.seed, n_members=len(runs))
    for index, run in enumerate(runs):
        own, expected = member(states, index), initial_state(run)
        tiny.assert_same_bits(own.params, expected.params)
        tiny.assert_same_bits(own.optimizer, expected.optimizer)


def test_the_order_of_each_member_is_that_of_its_run():
    _, differences = population_of(programs(MEMBERS))
    orders = population_orders(differences.seed, jnp.int32(1), tiny.N_TRAIN)
    for order, own in zip(orders, MEMBERS, strict=True):
        expected = epoch_order(own["seed"], jnp.int32(1), tiny.N_TRAIN)
        np.testing.assert_array_equal(order, expected)


@pytest.mark.thorough
def test_each_step_of_each_member_is_that_of_its_run():
    """Both are given the same state at every step, so that what differs is one step's rounding.

    Gradients are sums over 8 images of products over at most 16 tokens or features, and the
    backward pass of this model has about ten layers of them: rounded in another order, a gradient
    moves by `eps * 10 * sqrt(8 * 16)` of the largest one, and a parameter by the learning rate
    times that, and the rounding of its own sum.
    """
    runs = programs(MEMBERS[:3])
    program, differences = population_of(runs)
    states = population_states(program, differences.seed, n_members=len(runs))
    images, labels = jnp.asarray(DATA.train_images), jnp.asarray(DATA.train_labels)
    orders = population_orders(differences.seed, jnp.int32(0), tiny.N_TRAIN)
    eps = float(np.finfo(np.float32).eps)
    for step in range(2):
        start, one = jnp.int32(step * tiny.BATCH), jnp.int32(1)
        before = [member(states, index) for index in range(len(runs))]
        states, healthy = train_population_steps(
            program,
            states,
            differences,
            images,
            labels,
            orders,
            start,
            one,
            batch_size=tiny.BATCH,
            masked=True,
        )
        assert np.asarray(healthy).tolist() == [True] * len(runs)
        for index, run in enumerate(runs):
            paths = block_counts(before[index].params, run.model.plan)
            alone = dataclasses.replace(
                before[index],
                activity={path: before[index].activity[path] for path in paths},
                last_kept={path: before[index].last_kept[path] for path in paths},
            )
            start_params = jax.device_get(alone.params)
            order = epoch_order(run.seed, jnp.int32(0), tiny.N_TRAIN)
            alone, _ = train_steps(
                run, alone, images, labels, order, start, one, batch_size=tiny.BATCH, masked=True
            )
            found = member(states, index)
            for path in paths:
                np.testing.assert_array_equal(found.activity[path], alone.activity[path])
            moves = jax.tree.map(
                lambda a, b: np.abs(np.asarray(a) - b).max(), alone.params, start_params
            )
            move = max(jax.tree.leaves(moves))
            found_params, own_params = (
                {"now": state.params, "average": state.average} for state in (found, alone)
            )
            for (path, a), b in zip(
                jax.tree.leaves_with_path(found_params), jax.tree.leaves(own_params), strict=True
            ):
                atol = eps * (10 * np.sqrt(8 * 16) * move + float(jnp.max(jnp.abs(b))))
                np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=str(path))
            assert float(found.totals["loss"]) == pytest.approx(
                float(alone.totals["loss"]), rel=10 * np.sqrt(8 * 16) * eps
            )


def test_the_evaluation_of_each_member_is_that_of_its_run():
    runs = programs(MEMBERS[2:])
    program, differences = population_of(runs)
    states = population_states(program, differences.seed, n_members=len(runs))
    test = evaluation_batches(DATA.test_images, DATA.test_labels, 10)
    found = evaluate_population(program, states, differences, *test, masked=True)
    for index, run in enumerate(runs):
        expected = evaluate(run, *member(states, index).evaluated, {}, *test, masked=True)
        assert int(found.top1[index]) == int(expected.top1)
        assert int(found.top5[index]) == int(expected.top5)
        assert float(found.dropped_norm[index]) == pytest.approx(
            float(expected.dropped_norm), rel=1e-6
        )
        for path, kept in expected.kept.items():
            np.testing.assert_array_equal(found.kept[path][index], kept)
        if not expected.kept:
            assert all(bool(jnp.all(kept[index])) for kept in found.kept.values())


def test_modes_and_seeds_are_data_only_where_they_differ():
    program, differences = population_of(programs([MEMBERS[1], MEMBERS[3]]))
    assert differences.seed.ndim == 0
    assert differences.in_input_gradient is None
    rules = [rule for rule in all_rules(program.model.plan) if isinstance(rule, BlockMasking)]
    assert {rule.backward for rule in rules} == {"dense"}


def test_what_no_member_masks_need_not_be_divided_by_its_block():
    text = "ResMLP1 @ XChannel = masked {} (2, 4); XPatch = masked 0 (3, 3);"
    none = dict.fromkeys(("block", "ratio", "depth", "mask_layers"))
    members = [tiny.settings(**COMMON, **none, config=text.format(r)) for r in (0.5, 0.75)]
    program, differences = population_of([build_program(own, DATA) for own in members])
    assert {path.split("/")[1] for path in differences.n_kept} == {"XChannel1", "XChannel2"}
    masks = [rule for rule in all_rules(program.model.plan) if isinstance(rule, BlockMasking)]
    assert 0 in {rule.ratio for rule in masks}
