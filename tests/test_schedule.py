"""Schedules of the ratio: where they begin and end, and that they are few programs."""

import math

import pytest

from sparsemlp.errors import InputError
from sparsemlp.rules import ActivationPruning, BlockMasking
from sparsemlp.schedule import (
    DENSE,
    LEVELS,
    MASKED,
    MaskSchedule,
    Phase,
    adaptive_level,
    backward_at,
    cubic_level,
    plan_at,
)


def levels(schedule: MaskSchedule, epochs: int) -> list[int]:
    return [schedule.phase(epoch, ()).level for epoch in range(epochs)]


def test_the_constant_schedule_is_dense_and_then_whole():
    schedule = MaskSchedule(start=2)
    assert [schedule.phase(e, ()) for e in range(4)] == [DENSE, DENSE, MASKED, MASKED]


@pytest.mark.parametrize("ramp", [1, 2, 7, 50])
def test_the_cubic_ramp_never_falls_and_is_whole_at_its_end(ramp: int):
    found = levels(MaskSchedule(start=3, kind="cubic", ramp=ramp), 3 + ramp + 5)
    assert found[:3] == [0, 0, 0]
    assert found == sorted(found)
    assert all(1 <= level <= LEVELS for level in found[3:])
    assert found[3 + ramp :] == [LEVELS] * 5


def test_the_cubic_ramp_follows_its_formula_within_half_a_level():
    for epoch in range(1, 100):
        share = 1 - (1 - epoch / 100) ** 3
        assert abs(cubic_level(epoch, 100) - share * LEVELS) <= 0.5 or cubic_level(epoch, 100) == 1
    assert len({cubic_level(epoch, 100) for epoch in range(101)}) == LEVELS


def test_the_adaptive_level_rises_while_the_loss_falls_and_falls_when_it_rises():
    assert adaptive_level([]) == 1
    assert adaptive_level([2.0, 1.8, 1.7]) == 4
    assert adaptive_level([2.0, 3.0]) == 1
    assert adaptive_level([2.0, 2.09, 2.11]) == 2
    assert adaptive_level([1.0] * 20) == LEVELS
    assert adaptive_level([1.0, math.nan, math.nan, math.inf]) == 1
    assert adaptive_level([1.0, math.nan, 0.9]) == 2


def test_the_adaptive_schedule_does_not_look_at_the_epoch_under_way_nor_at_dense_ones():
    schedule = MaskSchedule(start=2, kind="adaptive")
    assert schedule.phase(2, [9.0, 9.0, 1.0, 1.0]).level == 1
    assert schedule.phase(3, [9.0, 9.0, 1.0]).level == 2


@pytest.mark.parametrize("kind", ["constant", "cubic", "adaptive"])
def test_a_frozen_mask_keeps_the_level_of_the_epoch_before(kind):
    losses = [1.0] * 20
    free = MaskSchedule(start=1, kind=kind, ramp=9)
    frozen = MaskSchedule(start=1, kind=kind, ramp=9, freeze=4)
    for epoch in range(4):
        assert frozen.phase(epoch, losses) == free.phase(epoch, losses)
    held = Phase(free.phase(3, losses).level, frozen=True)
    assert {frozen.phase(epoch, losses) for epoch in range(4, 15)} == {held}


def test_a_level_scales_the_ratios_of_masks_and_nothing_else():
    activation = ActivationPruning((8, 8), 0.5)
    plan = {"a": BlockMasking((2, 2), 0.8), "b": (BlockMasking((4, 4), 0.4), activation)}
    assert plan_at(plan, MASKED) == plan
    halved = plan_at(plan, Phase(LEVELS // 2, frozen=False))
    assert halved == {
        "a": BlockMasking((2, 2), 0.4),
        "b": (BlockMasking((4, 4), 0.2), activation),
    }


def test_a_frozen_mask_has_no_gradient_for_what_it_dropped():
    frozen = Phase(LEVELS, frozen=True)
    assert backward_at("straight_through", MASKED) == "straight_through"
    assert backward_at("straight_through", frozen) == "masked"
    # With the dense backward dX depends on the dropped weights: they have to go on.
    assert backward_at("dense", frozen) == "dense"
    plan = {"a": BlockMasking((2, 2), 0.8, "straight_through"), "b": BlockMasking((2, 2), 0.8)}
    assert plan_at(plan, frozen) == dict.fromkeys("ab", BlockMasking((2, 2), 0.8))


def test_an_unknown_schedule_is_refused(unchecked):
    with pytest.raises(InputError, match=r"'linear' is unknown: choose one of constant, cubic"):
        MaskSchedule(start=0, kind="linear")  # pyright: ignore[reportArgumentType]
