"""Costs of a run are those of the cost models for what it trained."""

import dataclasses
import json

import pytest
import synthetic_study as synthetic

from sparsemlp.budgets import erk_densities
from sparsemlp.cost_models import costs
from sparsemlp.cost_models.costs import KINDS, Run, Shapes
from sparsemlp.cost_models.step_costs import step_costs
from sparsemlp.runs.run_folder import RunFolder
from sparsemlp.schedule import DENSE, LEVELS, MASKED, Phase
from sparsemlp.studies.run_costs import dropped_share, masking_of, phases_of, run_costs, shapes_of
from sparsemlp.studies.study_run import StudyRun

_NO_BLOCKS = Shapes(depth=0)


def run(**changes) -> StudyRun:
    return StudyRun("a", "missing", settings=synthetic.settings(**changes))


def test_the_thesis_run_costs_what_the_thesis_says():
    found = run_costs(run(block="32x32", ratio=0.8))
    assert found is not None
    masking = dict.fromkeys(KINDS, ((32, 32), 0.8))
    assert found.loaded_elements == costs.loaded_elements(Shapes(), masking, Run())
    assert found.thesis_movement_gb == pytest.approx(277, rel=5e-3)
    dense = run_costs(run())
    assert dense is not None
    assert dense.loaded_elements == costs.loaded_elements(Shapes(), {}, Run())
    assert dense.thesis_flops == costs.thesis_flops(Shapes(), {}, Run())


def test_the_thesis_counts_a_ratio_as_it_is_whatever_blocks_it_keeps():
    """Of a 64x64 kernel a block of 64x64 is all there is, and 0.8 of it keeps it."""
    found = run_costs(run(block="64x64", ratio=0.8))
    assert found is not None
    unmasked, whole = (costs.thesis_flops(shapes, {}, Run()) for shapes in (_NO_BLOCKS, Shapes()))
    assert found.thesis_flops == pytest.approx(unmasked + 0.2 * (whole - unmasked))


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
        {"block": "48x48", "ratio": 0.8},
        {"block": "32x32", "ratio": 0.8, "ratio_schedule": "adaptive", "hold_out": 0.1},
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
    shares = {"XPatch": 1.0, "XChannel1": 3 / 16, "XChannel2": 1 / 16}
    flops = [
        costs.thesis_flops(
            Shapes(), {k: ((32, 32), 1 - share) for k, share in of_block.items()}, Run()
        )
        for of_block in (shares, {"XPatch": 1 / 4, "XChannel1": 1 / 16, "XChannel2": 1 / 16})
    ]
    assert found.thesis_flops == pytest.approx((flops[0] + 4 * flops[1]) / 5, rel=1e-12)
    uniform = run_costs(run(block="32x32", ratio=0.95))
    assert uniform is not None
    # All of one, and one of 4, 16 and 16: the other blocks of the network as with 0.95.
    assert uniform.loaded_elements == steps * 5 * 3 * 32 * 32
    more = {"XPatch": ((32, 32), 0.0), "XChannel1": ((32, 32), 0.85), "XChannel2": ((32, 32), 0.95)}
    length = Run(images_per_epoch=50_000)
    first, rest = costs.training_flops(Shapes(), more, length), uniform.training_flops
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


def loaded(ratio: float, epochs: int, size: int = 32) -> int:
    masking = dict.fromkeys(KINDS, ((size, size), ratio))
    return costs.loaded_elements(Shapes(), masking, Run(epochs=epochs))


def test_a_ramp_costs_what_its_levels_cost():
    own = {"block": "2x2", "ratio": 0.8, "epochs": 10, "mask_start_epoch": 2}
    found = run_costs(run(**own, ratio_schedule="cubic", ramp_epochs=2))
    assert found is not None
    # Two dense epochs and the first of the ramp at level 1, one at level 7, the others whole.
    expected = loaded(0.1, 3, 2) + loaded(0.7, 1, 2) + loaded(0.8, 6, 2)
    assert found.loaded_elements == expected
    assert phases_of(run(**own)) == {MASKED: 10}
    assert phases_of(run(epochs=2, mask_start_epoch=5, block="2x2", ratio=0.8)) == {DENSE: 2}


def test_a_run_that_ends_before_it_masks_costs_what_a_dense_one_does():
    found = run_costs(run(block="32x32", ratio=0.8, epochs=5, mask_start_epoch=5))
    assert found == run_costs(run(epochs=5))


@pytest.mark.parametrize("backward", ["masked", "straight_through", "dense"])
def test_flops_are_those_of_the_backward_pass(backward):
    found = run_costs(run(block="32x32", ratio=0.8, backward=backward))
    assert found is not None
    masking = dict.fromkeys(KINDS, ((32, 32), 0.8))
    image = step_costs(Shapes(), masking, backward, Run(batch_size=1))
    assert found.training_flops == image.flops * 50_000 * 200


def test_the_images_of_a_partial_batch_are_no_more_than_there_are():
    """The thesis' models count whole batches."""
    small, large = (run_costs(run(batch_size=size, epochs=1)) for size in (30_000, 50_000))
    assert small is not None
    assert large is not None
    assert small.training_flops == large.training_flops
    assert small.movement_gb == pytest.approx(large.movement_gb, rel=1e-3)
    assert small.thesis_movement_gb > 1.1 * large.thesis_movement_gb


def test_a_ramp_of_a_budget_scales_the_ratio_of_each_layer():
    own = {"block": "8x8", "ratio": 0.8, "budget": "erk", "epochs": 4, "mask_start_epoch": 0}
    found = run_costs(run(**own, ratio_schedule="cubic", ramp_epochs=1))
    assert found is not None
    densities = erk_densities({kind: Shapes().kernel(kind) for kind in KINDS}, 0.2)
    expected = 0
    for level, n_epochs in ((1, 1), (LEVELS, 3)):
        masking = {k: ((8, 8), (1 - share) * level / LEVELS) for k, share in densities.items()}
        expected += costs.loaded_elements(Shapes(), masking, Run(epochs=n_epochs))
    assert found.loaded_elements == expected


def test_an_adaptive_ratio_costs_what_its_validation_losses_made_of_it():
    own = synthetic.settings(
        block="32x32",
        ratio=0.8,
        ratio_schedule="adaptive",
        hold_out=0.1,
        epochs=5,
        mask_start_epoch=1,
    )
    losses = [9.0, 2.0, 1.0, 5.0, 4.0]
    records = tuple(
        {"epoch": number, "step": 391 * number, "test_top1": 0.5, "validation_loss": loss}
        for number, loss in enumerate(losses, start=1)
    )
    finished = StudyRun("a", "finished", settings=own, records=records)
    # The dense epoch counts as the first masked one, and a loss of 5 takes a level back.
    assert phases_of(finished) == {
        Phase(level, frozen=False): epochs for level, epochs in {1: 2, 2: 2, 3: 1}.items()
    }
    found = run_costs(finished)
    assert found is not None
    assert found.loaded_elements == loaded(0.1, 2) + loaded(0.2, 2) + loaded(0.3, 1)
    stopped = dataclasses.replace(finished, records=records[:3])
    assert phases_of(stopped) is None


def test_the_dropped_share_is_the_ratio_where_blocks_are_small_and_steps_where_not():
    assert dropped_share(Shapes(), list(KINDS), (1, 1), 0.5) == 0.5
    assert dropped_share(Shapes(), list(KINDS), (64, 64), 0.2) == 0.0
    # One XPatch block of one, one of four in both channel linears: 2/3 of all weights are dropped.
    assert dropped_share(Shapes(), list(KINDS), (64, 64), 0.9) == pytest.approx(2 / 3)


def test_a_budget_that_could_not_be_shared_out_has_no_costs():
    text = "ResMLP2 @ XPatch = masked 0.5 (8, 8); XChannel = masked 0.8 (8, 8);"
    assert run_costs(run(config=text, budget="erk")) is None


def test_validation_losses_that_are_not_finite_or_not_looked_at_do_not_matter():
    own = {"block": "8x8", "ratio": 0.8, "ratio_schedule": "adaptive", "mask_start_epoch": 0}
    settings = synthetic.settings(**own, epochs=6, freeze_epoch=4)
    losses = [2.0, float("nan"), 1.0]
    records = tuple(
        {"epoch": number, "step": number, "test_top1": 0.5, "validation_loss": loss}
        for number, loss in enumerate(losses, start=1)
    )
    # Up after the first, down after NaN, up again and frozen there.
    found = phases_of(StudyRun("a", "unfinished", settings=settings, records=records))
    assert found == {Phase(1, frozen=False): 2, Phase(2, frozen=False): 2, Phase(2, frozen=True): 2}


def test_frozen_masks_need_no_gradient_of_dropped_blocks():
    own = {"block": "32x32", "ratio": 0.8, "mask_start_epoch": 1, "epochs": 10}
    free = run_costs(run(**own, backward="straight_through"))
    half = run_costs(run(**own, backward="straight_through", freeze_epoch=5))
    masked = run_costs(run(**own, backward="masked"))
    assert free is not None
    assert half is not None
    assert masked is not None
    assert free.training_flops > masked.training_flops
    assert 2 * half.training_flops == free.training_flops + masked.training_flops
    assert half.loaded_elements == masked.loaded_elements
    dense = run_costs(run(**own, backward="dense", freeze_epoch=5))
    assert dense is not None
    assert dense.training_flops > free.training_flops
