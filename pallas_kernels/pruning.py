"""What the gradients of two layers leave out besides the dropped blocks of their kernels."""

import dataclasses
import math
from typing import Any, NamedTuple

from pallas_kernels.neighbours import Neighbours


@dataclasses.dataclass(frozen=True)
class Pruning:
    """What is pruned of the other operands of one layer.

    Attributes:
      activation: `(height, width)` of the blocks or windows that x is cut into for dW; None: all of
        x is taken. Rows run over all of x but its features.
      pools: whether the mean of each window is taken instead of the largest blocks.
      gradient: which neighbours of dY are kept for dX; None: all.
      positions: rows of a sample, where these neighbours are rescaled by what was lost of each
        sample and column; else 0.
    """

    activation: tuple[int, int] | None = None
    pools: bool = False
    gradient: Neighbours | None = None
    positions: int = 0

    @property
    def ranked(self) -> tuple[int, int] | None:
        """The blocks that are ranked, if any."""
        return None if self.pools else self.activation

    @property
    def unit(self) -> int:
        """Of how many rows a part of x has whole blocks, windows and samples that are rescaled."""
        height = 1 if self.activation is None else self.activation[0]
        return math.lcm(height, max(1, self.positions))


class Scales(NamedTuple):
    """The scales around two layers, or their gradients; each `[columns]` or None.

    Attributes:
      scale: of the columns of x.
      shift: what is added to the scaled columns of x.
      after: of the columns of the result.
    """

    scale: Any = None
    shift: Any = None
    after: Any = None
