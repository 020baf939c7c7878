"""The best epoch is one at the highest ratio that a run reaches."""

import pytest

from sparsemlp.runs.best_epoch import BestEpoch
from sparsemlp.schedule import MaskSchedule


def heard(best: BestEpoch, *top1: float) -> list[float | None]:
    """What is new after each epoch."""
    found = []
    for epoch, value in enumerate(top1):
        best.hear(epoch, value)
        found.append(best.take())
    return found


@pytest.mark.parametrize(
    ("schedule", "masks", "counting"),
    [
        (MaskSchedule(0), False, [0, 1, 2, 3]),
        (MaskSchedule(2), True, [2, 3]),
        (MaskSchedule(2), False, [0, 1, 2, 3]),
        (MaskSchedule(9), True, [0, 1, 2, 3]),
        (MaskSchedule(1, "adaptive"), True, [1, 2, 3]),
        (MaskSchedule(1, "cubic", ramp=2), True, [3]),
        (MaskSchedule(0, "cubic", ramp=8), True, [3]),
    ],
)
def test_epochs_that_can_be_the_best(schedule, masks, counting):
    for epoch in range(4):
        best = BestEpoch(schedule, 4, masks=masks)
        best.hear(epoch, 0.5)
        assert best.top1 == (0.5 if epoch in counting else -1.0)


def test_each_new_best_is_told_once_and_the_later_of_equal_ones_counts():
    best = BestEpoch(MaskSchedule(1), 6, masks=True)
    assert heard(best, 0.9, 0.3, 0.2, 0.3, 0.4) == [None, 0.3, None, 0.3, 0.4]
    assert best.take() is None
    assert best.top1 == 0.4


def test_a_run_that_goes_on_knows_the_best_of_its_records():
    best = BestEpoch(MaskSchedule(1), 4, masks=True)
    best.restart({"epoch": e, "test_top1": t} for e, t in ((1, 0.9), (2, 0.3), (3, 0.2)))
    assert best.top1 == 0.3
    assert best.take() is None
    best.restart([])
    assert best.top1 == -1.0
