"""How the ratio grows over the epochs, in few levels: every level is one compiled program."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, get_args

from sparsemlp.errors import require_known
from sparsemlp.plan import Plan
from sparsemlp.rules import Backward, BlockMasking, Rule

RatioSchedule = Literal["constant", "cubic", "adaptive"]

LEVELS = 8
"""Levels of a schedule that is not constant; level l masks with `ratio * l / LEVELS`."""
TOLERANCE = 0.05
"""Share by which a validation loss may exceed the best one, and the ratio still goes up."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """What is masked in an epoch.

    Attributes:
      level: 0 is dense, `LEVELS` the ratio of the plan.
      frozen: whether the blocks stay those of the last step; an evaluation after it may have had
        others.
    """

    level: int
    frozen: bool

    @property
    def masked(self) -> bool:
        """Whether weights are masked at all."""
        return self.level > 0


DENSE = Phase(0, frozen=False)
MASKED = Phase(LEVELS, frozen=False)
"""Every mask at its whole ratio."""


@dataclasses.dataclass(frozen=True)
class MaskSchedule:
    """When masks are on, how much they drop, and when they stay.

    Attributes:
      start: dense epochs before the first masked one.
      kind: `constant`, the whole ratio from the start; `cubic`, a ramp over `ramp` epochs (Zhu and
        Gupta, arXiv 1710.01878, equation 1); `adaptive`, by the validation loss.
      ramp: epochs of the cubic ramp.
      freeze: epoch from which masks stay, or None.
    """

    start: int
    kind: RatioSchedule = "constant"
    ramp: int = 0
    freeze: int | None = None

    def __post_init__(self) -> None:
        require_known(f"ratio schedule {self.kind!r}", self.kind, get_args(RatioSchedule))

    def phase(self, epoch: int, validation_losses: Sequence[float]) -> Phase:
        """What is masked in an epoch.

        Args:
          epoch: the epoch, from 0.
          validation_losses: of the epochs before it; only the adaptive schedule looks at them.
        """
        if epoch < self.start:
            return DENSE
        frozen = self.freeze is not None and epoch >= self.freeze
        if frozen and self.freeze is not None:
            epoch = self.freeze - 1
        if self.kind == "cubic":
            return Phase(cubic_level(epoch - self.start, self.ramp), frozen)
        if self.kind == "adaptive":
            return Phase(adaptive_level(validation_losses[self.start : epoch]), frozen)
        return Phase(LEVELS, frozen)


def cubic_level(epoch: int, length: int) -> int:
    """The level of an epoch of a ramp that is steep at first: `1 - (1 - t)**3` of the ratio.

    Args:
      epoch: epochs since the ramp began.
      length: epochs of the ramp; from then on the level is `LEVELS`.

    Returns:
      A level from 1 to `LEVELS`, the nearest one.
    """
    if epoch >= length:
        return LEVELS
    share = 1 - (1 - epoch / length) ** 3
    return max(1, math.floor(share * LEVELS + 0.5))


def adaptive_level(losses: Sequence[float]) -> int:
    """The level after epochs with these validation losses.

    It begins at 1, goes up by one after an epoch whose loss exceeds the best one before it by at
    most the share `TOLERANCE`, and down by one, not below 1, after any other, NaN included.

    Args:
      losses: validation losses of the masked epochs so far.
    """
    level, best = 1, math.inf
    for loss in losses:
        level = min(LEVELS, level + 1) if loss <= best * (1 + TOLERANCE) else max(1, level - 1)
        best = min(best, loss)
    return level


def backward_at(backward: Backward, phase: Phase) -> Backward:
    """The backward pass of an epoch: where masks are frozen, `straight_through` becomes `masked`.

    A block that never returns needs no gradient, and those of the kept blocks are the same: the
    optimizers here treat every weight by itself.
    """
    return "masked" if phase.frozen and backward == "straight_through" else backward


def plan_at(plan: Plan, phase: Phase) -> Plan:
    """The plan of an epoch that masks: ratios at its level, `backward_at`; other rules stay."""

    def at_phase(rule: Rule) -> Rule:
        if not isinstance(rule, BlockMasking):
            return rule
        ratio = rule.ratio if phase.level == LEVELS else rule.ratio * phase.level / LEVELS
        return dataclasses.replace(rule, ratio=ratio, backward=backward_at(rule.backward, phase))

    return {
        pattern: tuple(map(at_phase, rules)) if isinstance(rules, tuple) else at_phase(rules)
        for pattern, rules in plan.items()
    }
