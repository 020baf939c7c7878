"""Which epoch of a run is its best, and with which accuracy."""

from collections.abc import Iterable

from sparsemlp.files import Record
from sparsemlp.schedule import MaskSchedule


class BestEpoch:
    """Follows the test top-1 of the epochs that can be the best.

    These are the epochs at the highest ratio that the run reaches, where the ratio goes up and down
    all masked ones, and all of a run that never masks.

    Attributes:
      top1: the best so far, a fraction of 1; -1 before there is one.

    Args:
      schedule: when the run masks, and how much.
      epochs: how long it is.
      masks: whether it drops anything at all.
    """

    def __init__(self, schedule: MaskSchedule, epochs: int, *, masks: bool) -> None:
        self.top1 = -1.0
        self._waiting: float | None = None
        self._counting = _counting(schedule, epochs, masks=masks)

    def restart(self, records: Iterable[Record]) -> None:
        """Goes on behind the epochs that are on record."""
        counting = (record for record in records if record["epoch"] - 1 in self._counting)
        self.top1 = max((float(record["test_top1"]) for record in counting), default=-1.0)

    def hear(self, epoch: int, top1: float) -> None:
        """Takes note of an epoch, from 0, that was evaluated."""
        if epoch in self._counting and top1 >= self.top1:
            self.top1 = self._waiting = top1

    def take(self) -> float | None:
        """The top-1 of a new best epoch, once; None if there was none since."""
        top1, self._waiting = self._waiting, None
        return top1


def _counting(schedule: MaskSchedule, epochs: int, *, masks: bool) -> range | frozenset[int]:
    if not masks or schedule.start >= epochs:
        return range(epochs)
    if schedule.kind == "adaptive":
        return range(schedule.start, epochs)
    levels = [schedule.phase(epoch, ()).level for epoch in range(epochs)]
    highest = max(levels)
    return frozenset(epoch for epoch, level in enumerate(levels) if level == highest)
