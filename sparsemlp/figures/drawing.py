"""What a figure is made of, and how it says that there is nothing to draw."""

import dataclasses
from collections.abc import Callable, Iterator

from matplotlib.figure import Figure

from sparsemlp.studies.study import Study


@dataclasses.dataclass(frozen=True, eq=False)
class Drawing:
    """A figure and its words.

    Attributes:
      name: stem of its files.
      figure: what is drawn.
      caption: what it shows, for a reader who does not see it as well.
    """

    name: str
    figure: Figure
    caption: str


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The setting of the figures that show one.

    Attributes:
      block: `ROWSxCOLS`.
      ratio: share of blocks dropped.
    """

    block: str = "32x32"
    ratio: float = 0.8


ONE_MASK = "the same mask in all masked layers"
"""What figures by block and ratio take of a run, in words."""


class NothingToDrawError(LookupError):
    """A study has no data for a figure; the message says in a line what is lacking."""


Draw = Callable[[Study, Chosen], Iterator[Drawing]]
"""Draws the figures of a kind, or raises NothingToDrawError."""
