"""Options of moving masks: each reaches its rule, and is told in words."""

import dataclasses

import pytest

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.mask_options import (
    check_dropped_decay,
    check_mask_options,
    dynamics,
    in_words,
    mask_schedule,
)
from sparsemlp.configuration.settings import resolve
from sparsemlp.dynamics import Dynamics
from sparsemlp.errors import InputError
from sparsemlp.schedule import MaskSchedule


def test_defaults_are_the_thesis_way():
    settings = resolve(Config(ratio=0.8), "cifar10")
    assert dynamics(settings) == Dynamics()
    assert mask_schedule(settings) == MaskSchedule(start=10)
    assert in_words(settings) == []
    check_mask_options(settings, masked=False)


def test_every_option_reaches_its_rule():
    chosen = Config(
        ratio=0.8,
        score_decay=0.5,
        hysteresis=0.25,
        dropped_decay=2e-4,
        moments="reset",
        freeze_epoch=90,
        ratio_schedule="cubic",
    )
    settings = resolve(chosen, "cifar10")
    assert dynamics(settings) == Dynamics(0.5, 0.25, 2e-4, "reset", freezes=True)
    # Half of the 190 epochs that mask.
    assert mask_schedule(settings) == MaskSchedule(start=10, kind="cubic", ramp=95, freeze=90)
    assert resolve(Config(ratio=0.8, ratio_schedule="adaptive"), "cifar10").hold_out == 0.1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": "global"}, ["global budget"]),
        ({"ratio_schedule": "cubic"}, ["cubic ratio"]),
        ({"freeze_epoch": 50, "hysteresis": 0.1}, ["hysteresis 0.1", "freeze epoch 50"]),
        ({"score": "spectral", "moments": "reset"}, ["spectral score", "reset moments"]),
    ],
)
def test_what_differs_is_told_in_words(options, words):
    assert in_words(Config(ratio=0.8, **options)) == words


def test_dropped_weights_decay_where_they_learn_on():
    sr_ste = Config(ratio=0.5, dropped_decay=1e-4)
    said = r"--dropped-decay=0\.0001 .* choose --backward=straight_through or dense"
    with pytest.raises(InputError, match=said):
        check_dropped_decay(sr_ste)
    check_dropped_decay(dataclasses.replace(sr_ste, backward="straight_through"))
    resolve(sr_ste, "cifar10")  # Runs that did it can still be read.


def test_gradients_do_not_rank_the_blocks_of_all_layers():
    with pytest.raises(InputError, match=r"--budget=global ranks .* choose --budget=erk"):
        resolve(
            Config(ratio=0.8, budget="global", score="gradient", backward="straight_through"),
            "cifar10",
        )
