"""From the states of runs to that of their population and back, and the memory that it needs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from sparsemlp.configuration.program import build_program
from sparsemlp.populations.population_trainer import PopulationTrainer, StepBytes
from sparsemlp.schedule import DENSE
from sparsemlp.train.train_state import initial_state

DATA = tiny.dataset()
PROGRAMS = [
    build_program(tiny.settings(ratio=ratio, seed=seed), DATA)
    for ratio, seed in ((0.5, 0), (0.0, 1))
]


@pytest.fixture(scope="module")
def trainer() -> PopulationTrainer:
    return PopulationTrainer(PROGRAMS, DATA, tiny.BATCH)


def test_the_states_of_the_members_are_those_that_were_stacked(trainer):
    """The second run is dense: it counts no blocks, and in the population it keeps all of them."""
    states = [
        dataclasses.replace(initial_state(program), step=jnp.int32(7)) for program in PROGRAMS
    ]
    stacked = trainer.stack(states)
    shapes = jax.eval_shape(trainer.initial)
    assert jax.tree.structure(stacked) == jax.tree.structure(shapes)
    for leaf, shape in zip(jax.tree.leaves(stacked), jax.tree.leaves(shapes), strict=True):
        assert (leaf.shape, leaf.dtype) == (shape.shape, shape.dtype)
    for index, state in enumerate(states):
        tiny.assert_same_bits(trainer.member(stacked, index), state)
    assert not states[1].activity
    assert all(np.asarray(kept[1]).all() for kept in stacked.last_kept.values())


def test_the_totals_begin_anew_with_an_epoch(trainer):
    state = trainer.stack([initial_state(program) for program in PROGRAMS])
    state = dataclasses.replace(state, totals=jax.tree.map(jnp.ones_like, state.totals))
    found = trainer.evaluate(state, DENSE)
    begun = trainer.next_epoch(state, found)
    assert not any(np.asarray(total).any() for total in begun.totals.values())
    assert {path: kept.shape for path, kept in begun.last_kept.items()} == {
        path: kept.shape for path, kept in state.last_kept.items()
    }
    assert trainer.evaluation_of(found, 1).kept == {}
    assert int(trainer.evaluation_of(found, 0).top1) == int(found.top1[0])


@pytest.mark.parametrize(
    ("n_members", "limit", "expected"),
    [(10, 1100, 10), (10, 1099, 9), (10, 200, 1), (4, 350, 1), (4, 600, 2), (3, 0, 1)],
)
def test_as_many_members_fit_as_their_share_of_the_memory_allows(n_members, limit, expected):
    assert StepBytes(shared=100, of_members=1000).largest(n_members, limit) == expected
