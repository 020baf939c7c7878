"""An epoch in chunks: every image once, the partial batch included, and nothing compiled twice."""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from sparsemlp.configuration.program import build_program
from sparsemlp.schedule import DENSE, MASKED
from sparsemlp.train.evaluation import Evaluation, evaluate, evaluation_batches
from sparsemlp.train.train_state import Program, TrainState, epoch_order, initial_state, no_totals
from sparsemlp.train.trainer import Trainer

FOREVER = 1e9


@pytest.fixture(scope="module")
def program() -> Program:
    return build_program(tiny.settings(**(tiny.PLAIN | {"flip": 0.5})), tiny.dataset())


@pytest.fixture(scope="module")
def trainer(program: Program) -> Trainer:
    return Trainer(program, tiny.dataset(), tiny.BATCH)


def train_epoch(
    trainer: Trainer, state: TrainState, epoch: int, seconds: list[float]
) -> tuple[TrainState, list[int]]:
    """Trains one masked epoch, call after call with the next of `seconds`, then the last again."""
    sizes: list[int] = []
    while sum(sizes) < trainer.steps_per_epoch:
        state, n_steps, healthy = trainer.train(
            state,
            epoch,
            sum(sizes),
            seconds=seconds[min(len(sizes), len(seconds) - 1)],
            phase=MASKED,
        )
        assert healthy
        sizes.append(n_steps)
    assert sum(sizes) == trainer.steps_per_epoch
    return state, sizes


@pytest.mark.parametrize(
    ("n_images", "batch_size", "steps"), [(44, 8, 6), (40, 8, 5), (44, 44, 1), (1, 1, 1), (9, 8, 2)]
)
def test_steps_in_an_epoch_include_the_partial_batch(program, n_images, batch_size, steps):
    assert Trainer(program, tiny.dataset(n_train=n_images), batch_size).steps_per_epoch == steps


def test_however_an_epoch_is_cut_the_state_is_the_same_bit_for_bit(program, trainer):
    """Neither the speed of a machine nor an interruption changes the numbers."""
    states, cuts = [], []
    for seconds in ([0.0], [0.0, FOREVER], [FOREVER]):
        state, sizes = train_epoch(trainer, initial_state(program), 0, seconds)
        states.append(state)
        cuts.append(sizes)
    assert cuts[0] == [1] * 6
    assert cuts[1] == [1, 4, 1]
    assert int(states[0].step) == 6
    assert int(states[0].totals["images"]) == tiny.N_TRAIN
    for state in states[1:]:
        tiny.assert_same_bits(state, states[0])


def recording(n_classes: int, n_steps: int) -> optax.GradientTransformation:
    """Leaves the parameters alone and keeps the gradient of the head's bias of every step."""

    def init(params: Any) -> Any:
        return jnp.int32(0), jnp.zeros((n_steps, n_classes))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        row, seen = state
        seen = seen.at[row].set(updates["head"]["bias"])
        return jax.tree.map(jnp.zeros_like, updates), (row + 1, seen)

    return optax.GradientTransformation(init, update)


@pytest.mark.parametrize("seed", [0, 1])
def test_every_image_is_seen_once_an_epoch_in_the_order_of_the_epoch(seed):
    """Each image is a class of its own here, so gradients tell which images made them.

    With all parameters zero the logits are constant, and the gradient of the head's bias is
    `1 / classes` less the share of each class in the batch.
    """
    n_images, batch_size = 20, 8
    data = dataclasses.replace(
        tiny.dataset(n_train=n_images),
        train_labels=np.arange(n_images, dtype=np.int32),
        n_classes=n_images,
    )
    program = dataclasses.replace(
        build_program(tiny.settings(seed=seed, **tiny.PLAIN), data),
        optimizer=recording(n_images, 2 * 3),
    )
    trainer = Trainer(program, data, batch_size)
    state = initial_state(program)
    state = dataclasses.replace(state, params=jax.tree.map(jnp.zeros_like, state.params))
    for epoch in (0, 1):
        state, _ = train_epoch(trainer, state, epoch, [FOREVER])
    gradients = np.asarray(state.optimizer[1])
    found = []
    for epoch, steps in enumerate(gradients.reshape(2, 3, n_images)):
        order = np.asarray(epoch_order(seed, jnp.int32(epoch), n_images))
        for step, gradient in enumerate(steps):
            chosen = order[step * batch_size : (step + 1) * batch_size]
            counts = (1 / n_images - gradient) * len(chosen)
            np.testing.assert_allclose(counts, np.isin(np.arange(n_images), chosen), atol=1e-5)
        found.append(order.tolist())
    assert all(sorted(order) == list(range(n_images)) for order in found)
    assert found[0] != found[1]


def test_each_program_is_compiled_once_when_it_is_first_needed(program):
    """The optimizer is Python code: it runs when a program is traced and never again."""
    n_traces = 0

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        nonlocal n_traces
        n_traces += 1
        return program.optimizer.update(updates, state, params)

    counted = dataclasses.replace(
        program, optimizer=optax.GradientTransformation(program.optimizer.init, update)
    )
    trainer = Trainer(counted, tiny.dataset(), tiny.BATCH)
    assert not trainer.is_compiled(0, MASKED)
    state, _ = train_epoch(trainer, initial_state(counted), 0, [0.0])
    assert trainer.is_compiled(4, MASKED)
    assert trainer.is_compiled(5, MASKED)
    assert not trainer.is_compiled(0, DENSE)
    n_first = n_traces
    assert n_first >= 2
    for epoch, seconds in ((1, [FOREVER]), (2, [0.0])):
        state, _ = train_epoch(trainer, state, epoch, seconds)
    assert n_traces == n_first
    assert int(state.step) == 18


def test_time_is_that_of_training_alone(program):
    """Tracing, here slowed down, is no training, and neither is an evaluation."""
    slept = 0.0

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        nonlocal slept
        began = time.perf_counter()
        time.sleep(0.5)
        slept += time.perf_counter() - began
        return program.optimizer.update(updates, state, params)

    slow = dataclasses.replace(
        program, optimizer=optax.GradientTransformation(program.optimizer.init, update)
    )
    start = initial_state(slow)
    trainer = Trainer(slow, tiny.dataset(), tiny.BATCH)
    began = time.perf_counter()
    state, _ = train_epoch(trainer, start, 0, [FOREVER])
    took = trainer.seconds
    assert 0 < took <= time.perf_counter() - began - slept
    trainer.evaluate(state, MASKED)
    assert trainer.seconds == took


def test_an_evaluation_counts_the_whole_test_set(program, trainer):
    data = tiny.dataset()
    params = initial_state(program).params
    found = trainer.evaluate(initial_state(program), MASKED)
    by_sevens = evaluation_batches(data.test_images, data.test_labels, 7)
    expected = evaluate(program, params, {}, {}, *by_sevens, masked=True)
    assert (int(found.top1), int(found.top5)) == (int(expected.top1), int(expected.top5))


def test_a_state_that_is_not_finite_is_told(program, trainer):
    state = initial_state(program)
    totals = no_totals() | {"loss": jnp.float32(jnp.nan)}
    _, n_steps, healthy = trainer.train(
        dataclasses.replace(state, totals=totals), 0, 0, seconds=0.0, phase=MASKED
    )
    assert (n_steps, healthy) == (1, False)


def test_test_set_and_held_out_images_are_judged_by_the_average(monkeypatch):
    program = build_program(tiny.settings(ema=0.9), tiny.dataset())
    seen = []

    def evaluated(program: Program, params: Any, *_: Any, **__: Any) -> Any:
        seen.append(params)
        return Evaluation(top1=0, top5=0, loss=1.0, images=4, dropped_norm=0.0, kept={})

    monkeypatch.setattr("sparsemlp.train.trainer.evaluate", evaluated)
    data = tiny.dataset()
    held_out = data.test_images[:4], data.test_labels[:4]
    trainer = Trainer(program, data, tiny.BATCH, held_out)
    state = initial_state(program)
    trainer.evaluate(state, MASKED)
    assert trainer.validate(state, MASKED) == 0.25
    assert [params is state.average["params"] for params in seen] == [True, True]
