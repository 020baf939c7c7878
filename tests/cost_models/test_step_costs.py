"""What a step costs: counted by hand, as whole runs are counted, and as compiled programs say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparsemlp import InputError
from sparsemlp.cost_models.costs import KINDS, Run, Shapes, training_flops
from sparsemlp.cost_models.step_costs import StepCosts, exchanged_bytes, n_parameters, step_costs

HERE = Path(__file__).parents[1]
SMALL = Shapes(image_size=4, patch_size=2, channels=1, dim=2, depth=1, expansion=2, n_classes=3)
"""4 tokens of 4 numbers; kernels 4x4, 2x4 and 4x2; 77 parameters."""
EACH = Run(batch_size=1, steps_per_epoch=1, epochs=1, line_bytes=4)
"""A line is one number, so that lines can be counted by hand."""
FIRST = {"XChannel1": ((2, 1), 0.5)}
"""Keeps 2 of 4 blocks of 2 weights."""
IMAGENET = Shapes(224, 14, 3, 384, 12, 4, 1000)


@pytest.mark.parametrize(
    ("masking", "backward", "expected"),
    [
        ({}, "masked", StepCosts(740, 0, 4028, 312)),
        (FIRST, "masked", StepCosts(548, 96, 4012, 296)),
        (FIRST, "straight_through", StepCosts(612, 64, 4028, 312)),
        (FIRST, "dense", StepCosts(676, 32, 4044, 312)),
    ],
    ids=["dense model", "masked", "straight-through", "dense backward"],
)
def test_a_small_step_counted_by_hand(masking, backward, expected):
    """Multiply-adds of an image: 32 in each layer and the embedding, 6 in the head.

    Read and written are 255 activations, 213 weights and gradients, 7 times 77 parameters, and the
    8 weights that the selection of a mask looks at.
    """
    assert n_parameters(SMALL) == 77
    assert step_costs(SMALL, masking, backward, EACH) == expected


def test_a_fused_channel_mlp_moves_no_hidden_unit_and_computes_them_twice():
    masking = FIRST | {"XChannel2": ((2, 1), 0.5)}
    plain, fused = (step_costs(SMALL, masking, "masked", EACH, fused=f) for f in (False, True))
    assert fused.masked_flops - plain.masked_flops == 2 * 16
    # Both layers read and wrote 4 tokens of 2 and 4 numbers, three times; 5 times x or y is left,
    # and the 4 kept weights of the first layer are read once more.
    assert plain.moved_bytes - fused.moved_bytes == 4 * (3 * 2 * 4 * (2 + 4) - 5 * 4 * 2 - 4)
    assert fused.exchanged_bytes == plain.exchanged_bytes
    wide = Shapes(dim=64, expansion=8)
    saved = [
        step_costs(wide, dict.fromkeys(KINDS, ((8, 8), 0.5)), "masked", Run(), fused=f).moved_bytes
        for f in (False, True)
    ]
    assert saved[1] < saved[0]


@pytest.mark.parametrize("masking", [FIRST, {"XPatch": ((2, 2), 0.5)}, {}], ids=str)
def test_only_a_masked_channel_mlp_is_fused(masking):
    with pytest.raises(InputError, match="mask XChannel, or leave the fusion out"):
        step_costs(SMALL, masking, "masked", EACH, fused=True)


@pytest.mark.parametrize("ratio", [None, 0.5, 0.8])
def test_flops_are_those_of_a_run_of_one_step(ratio):
    masking = {} if ratio is None else dict.fromkeys(KINDS, ((32, 32), ratio))
    run = Run(batch_size=3, steps_per_epoch=1, epochs=1)
    assert step_costs(IMAGENET, masking, "masked", run).flops == training_flops(
        IMAGENET, masking, run
    )


def test_more_dropped_blocks_never_cost_more():
    found = [
        step_costs(IMAGENET, dict.fromkeys(KINDS, ((32, 32), ratio)), "masked", EACH)
        for ratio in (0.0, 0.2, 0.4, 0.6, 0.8, 0.9)
    ]
    for name in ("masked_flops", "moved_bytes", "exchanged_bytes"):
        numbers = [getattr(costs, name) for costs in found]
        assert numbers == sorted(numbers, reverse=True)


def test_backward_passes_are_ordered_by_what_they_save():
    masking = dict.fromkeys(KINDS, ((32, 32), 0.8))
    found = [
        step_costs(IMAGENET, masking, backward, EACH)
        for backward in ("masked", "straight_through", "dense")
    ]
    flops = [costs.flops for costs in (*found, step_costs(IMAGENET, {}, "masked", EACH))]
    assert flops == sorted(flops)
    assert found[0].exchanged_bytes < found[1].exchanged_bytes == found[2].exchanged_bytes


def test_the_imagenet_model_exchanges_less_than_a_quarter_of_dense():
    masking = dict.fromkeys(KINDS, ((32, 32), 0.8))
    dense = exchanged_bytes(IMAGENET, {}, "masked")
    assert dense == 4 * (15_607_912 + 1)
    assert exchanged_bytes(IMAGENET, masking, "masked") < 0.25 * dense


@pytest.mark.thorough
def test_bytes_exchanged_are_those_of_the_collectives_in_compiled_programs():
    """On 4, 2 and 1 virtual devices of a CPU, to the byte; one device exchanges nothing."""
    environment = os.environ | {
        "JAX_NUM_CPU_DEVICES": "4",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE.parent / "experiments")]),
    }
    done = subprocess.run(
        [sys.executable, HERE / "collectives_on_devices.py"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {(n, how): numbers for n, how, *numbers in json.loads(done.stdout.splitlines()[-1])}
    assert len(found) == 6
    for (devices, _), (compiled, counted) in found.items():
        assert compiled == (counted if devices > 1 else 0)
    assert found[4, "masked"][0] < found[4, "none"][0] == found[4, "dense"][0]
