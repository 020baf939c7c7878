"""Titles and legends as long as what sets runs apart: broken into lines that fit on the page."""

import textwrap
from collections.abc import Iterable

from sparsemlp.figures.style import WIDTH

LINE_HEIGHT = 0.16
"""Inches of a line of a legend."""

TITLE_LINE_HEIGHT = 0.2
"""Inches of a line of a title."""

_CHARACTERS = 100
"""Of a legend's line over the whole width of a page, beside its handle."""
_OF_TITLE = 11
"""Characters of a title, in an inch."""


def columns_for(labels: Iterable[str], most: int, width: float = WIDTH) -> int:
    """How many columns of a legend these labels fit into side by side, one to `most`.

    Args:
      labels: of the legend's entries.
      most: columns at most.
      width: of the figure, in inches.
    """
    longest = max(map(len, labels), default=0)
    return max(n for n in range(1, most + 1) if n == 1 or longest <= _of_column(n, width))


def wrap(label: str, columns: int = 1, width: float = WIDTH) -> str:
    """A label broken into lines that fit into one of some columns of a figure so wide."""
    return wrap_to(label, _of_column(columns, width))


def wrap_to(label: str, characters: int) -> str:
    """A label broken between its words into lines of so many characters, longer words whole."""
    return textwrap.fill(label, characters, break_long_words=False, break_on_hyphens=False)


def wrap_title(title: str, width: float = WIDTH) -> tuple[str, float]:
    """A title broken into lines that fit a figure so wide, and the inches that more than one take.

    Args:
      title: of the figure or of its only panel.
      width: of the figure, in inches.
    """
    lines = wrap_to(title, int(_OF_TITLE * width))
    return lines, TITLE_LINE_HEIGHT * lines.count("\n")


def height(labels: Iterable[str], columns: int = 1) -> float:
    """Inches that a legend of these labels is high."""
    lines = [1 + label.count("\n") for label in labels]
    rows = -(-len(lines) // columns)
    # Entries go down the columns; the highest one counts.
    filled = [sum(lines[start : start + rows]) for start in range(0, len(lines), max(1, rows))]
    return LINE_HEIGHT * max(filled, default=0)


def _of_column(columns: int, width: float) -> int:
    return int(_CHARACTERS * width / WIDTH) // columns - (0 if columns == 1 else 6)
