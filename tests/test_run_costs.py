"""Costs of a run are those of the cost models for what it trained."""

import pytest
import synthetic_study as synthetic

from sparsemlp import costs
from sparsemlp.costs import KINDS, Run, Shapes
from sparsemlp.run_costs import dropped_share, masking_of, run_costs, shapes_of
from sparsemlp.study_run import StudyRun


def run(**changes) -> StudyRun:
    return StudyRun("a", "missing", settings=synthetic.settings(**changes))


def test_the_thesis_run_costs_what_the_thesis_says():
    found = run_costs(run(block="32x32", ratio=0.8))
    assert found is not None
    masking = dict.fromkeys(KINDS, ((32, 32), 0.8))
    assert found.loaded_elements == costs.loaded_elements(Shapes(), masking, Run())
    assert found.thesis_movement_gb == pytest.approx(277, rel=5e-3)
    assert run_costs(run()) == run_costs(run(block="32x32", ratio=0.8), {})


def test_layers_that_are_not_masked_are_not_counted_as_masked():
    settings = synthetic.settings(block="32x32", ratio=0.8, mask_layers="XChannel2")
    assert masking_of(settings) == {"XChannel2": ((32, 32), 0.8)}
    depth_3 = synthetic.settings(config="ResMLP3 @ XPatch = masked 0.5 (2, 2);")
    assert shapes_of(depth_3) == Shapes(depth=3)
    assert masking_of(depth_3) == {"XPatch": ((2, 2), 0.5)}


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "resnet9"},
        {"dataset": "some.npz"},
        {"block": "32x32", "ratio": 0.8, "budget": "erk"},
        {"block": "32x32", "ratio": 0.8, "ratio_schedule": "cubic"},
    ],
)
def test_what_the_models_do_not_know_has_no_costs(changes):
    assert run_costs(run(**changes)) is None


def test_the_dropped_share_is_the_ratio_where_blocks_are_small_and_steps_where_not():
    assert dropped_share(Shapes(), list(KINDS), (1, 1), 0.5) == 0.5
    assert dropped_share(Shapes(), list(KINDS), (64, 64), 0.2) == 0.0
    # One XPatch block of one, one of four in both channel linears: 2/3 of all weights are dropped.
    assert dropped_share(Shapes(), list(KINDS), (64, 64), 0.9) == pytest.approx(2 / 3)
