"""What follows from the settings of a run and its data set."""

import math

import pytest
import tiny

from sparsemlp.budgets import with_ratios
from sparsemlp.runs.run_setup import RunSetup, set_up


def masked(**changes: object) -> RunSetup:
    return set_up(tiny.settings(epochs=3, **changes), tiny.dataset())


def test_steps_count_the_partial_last_batch_and_not_the_images_held_out():
    whole, held = masked(), masked(hold_out=0.25)
    assert (whole.steps_per_epoch, whole.total_steps) == (math.ceil(44 / 8), 18)
    assert held.training.n_train < 44
    assert held.steps_per_epoch == math.ceil(held.training.n_train / 8)
    assert len(held.held_out[1]) == 44 - held.training.n_train
    assert whole.held_out is None


def test_the_density_is_that_of_the_blocks_that_are_kept():
    assert masked(ratio=0.0).density == 1.0
    assert masked(ratio=0.5).density == pytest.approx(0.5, abs=0.02)


def test_another_plan_has_its_own_density_and_leaves_the_rest():
    setup = masked(budget="global")
    kernels = [f"block_0/{layer}/kernel" for layer in ("XPatch", "XChannel1", "XChannel2")]
    plan = with_ratios(setup.shapes.params, setup.program.model.plan, dict.fromkeys(kernels, 0.75))
    other = setup.with_plan(plan)
    n_kept = math.ceil(2 / 4) + 2 * (16 // 4)
    assert other.density == pytest.approx(n_kept / (2 + 16 + 16))
    assert other.program.model.plan == plan
    assert (other.parameters, other.total_steps) == (setup.parameters, setup.total_steps)
    assert setup.density == 0.5
