"""Costs of a run are those of the cost models for what it trained."""

import json

import pytest
import synthetic_study as synthetic

from sparsemlp import costs
from sparsemlp.budgets import erk_densities
from sparsemlp.costs import KINDS, Run, Shapes
from sparsemlp.run_costs import dropped_share, masking_of, run_costs, shapes_of
from sparsemlp.run_folder import RunFolder
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
        {"block": "32x32", "ratio": 0.8, "budget": "global"},
        {"block": "32x32", "ratio": 0.8, "ratio_schedule": "cubic"},
    ],
)
def test_what_the_models_do_not_know_has_no_costs(changes):
    assert run_costs(run(**changes)) is None


def test_budgets_are_counted_layer_by_layer(tmp_path):
    ratios = {}
    for block in range(5):
        for kind, n_blocks in (("XPatch", 4), ("XChannel1", 16), ("XChannel2", 16)):
            n_kept = {"XPatch": 4, "XChannel1": 3, "XChannel2": 1}[kind] if block == 0 else 1
            ratios[f"block_{block}/{kind}/kernel"] = 1 - (n_kept - 0.5) / n_blocks
    (tmp_path / "budget.json").write_text(json.dumps(ratios))
    own = synthetic.settings(block="32x32", ratio=0.8, budget="global")
    found = run_costs(StudyRun("a", "finished", settings=own, folder=RunFolder(tmp_path)))
    assert found is not None
    steps = Run().steps
    assert found.loaded_elements == steps * (8 + 4 * 3) * 32 * 32
    uniform = run_costs(run(block="32x32", ratio=0.95))
    assert uniform is not None
    # All of one, and one of 4, 16 and 16: the other blocks of the network as with 0.95.
    assert uniform.loaded_elements == steps * 5 * 3 * 32 * 32
    more = {"XPatch": ((32, 32), 0.0), "XChannel1": ((32, 32), 0.85), "XChannel2": ((32, 32), 0.95)}
    first, rest = costs.training_flops(Shapes(), more, Run()), uniform.training_flops
    assert 5 * found.training_flops == first + 4 * rest


def test_the_shares_of_erk_are_those_that_are_trained():
    own = run(block="8x8", ratio=0.8, budget="erk")
    found, uniform = run_costs(own), run_costs(run(block="8x8", ratio=0.8))
    assert found is not None
    assert uniform is not None
    densities = erk_densities({kind: Shapes().kernel(kind) for kind in KINDS}, 0.2)
    maskings = [{kind: ((8, 8), 1 - density) for kind, density in densities.items()}]
    assert found.loaded_elements == costs.loaded_elements(Shapes(), maskings[0], Run())
    assert found.loaded_elements == pytest.approx(uniform.loaded_elements, rel=0.03)
    assert found.loaded_elements != uniform.loaded_elements


def test_the_dropped_share_is_the_ratio_where_blocks_are_small_and_steps_where_not():
    assert dropped_share(Shapes(), list(KINDS), (1, 1), 0.5) == 0.5
    assert dropped_share(Shapes(), list(KINDS), (64, 64), 0.2) == 0.0
    # One XPatch block of one, one of four in both channel linears: 2/3 of all weights are dropped.
    assert dropped_share(Shapes(), list(KINDS), (64, 64), 0.9) == pytest.approx(2 / 3)
