"""The masks of a step: none while weights are dense, else those of plan and dynamics, or given."""

import jax
import numpy as np
import pytest
import tiny

from sparsemlp.configuration.program import build_program
from sparsemlp.dynamics import select_dynamic_masks
from sparsemlp.train.step_masks import step_masks
from sparsemlp.train.train_state import Program, TrainState, initial_state


@pytest.fixture(scope="module")
def run() -> tuple[Program, TrainState]:
    program = build_program(tiny.settings(score_decay=0.5), tiny.dataset())
    return program, initial_state(program)


def test_dense_weights_have_no_masks_and_their_scores_are_remembered(run):
    program, state = run
    params = jax.tree.map(lambda p: 3 * p, state.params)
    masks, memory = step_masks(program, params, state.memory, masked=False, masks_of=None)
    assert masks == {}
    for path, score in memory["scores"].items():
        np.testing.assert_allclose(score, 2 * state.memory["scores"][path], rtol=1e-6)


def test_masks_are_those_of_the_plan_and_its_dynamics(run):
    program, state = run
    masks, memory = step_masks(program, state.params, state.memory, masked=True, masks_of=None)
    wanted, remembered = select_dynamic_masks(
        state.params, program.model.plan, program.dynamics, state.memory, frozen=False
    )
    tiny.assert_same_bits((masks, memory), (wanted, remembered))


def test_another_selection_takes_its_place_and_leaves_the_memory(run):
    program, state = run
    own, seen = {"block_0": {}}, []

    def masks_of(params):
        seen.append(params)
        return own

    masks, memory = step_masks(program, state.params, state.memory, masked=True, masks_of=masks_of)
    assert masks is own
    assert memory is state.memory
    (params,) = seen
    assert params is state.params
