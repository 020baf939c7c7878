"""One look for all figures: for print on white paper, and for eyes that do not tell all colours.

Colours are those of Okabe and Ito; what a colour says, a dash or a marker says as well. Sequences
use cividis, which is monotone in lightness.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.ticker import MaxNLocator

from sparsemlp.blocks import parse_block

WIDTH = 7.2
"""Inches: a page of A4 or letter between its margins."""

COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""That the colour-blind tell apart (Okabe and Ito)."""
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
SEQUENCE = "cividis"
MUTED = "#5c6670"

_LOOK: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#d5dade",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "legend.title_fontsize": 7.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "figure.titlesize": 10,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.06,
    "text.parse_math": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "sparsemlp",
    "path.simplify": True,
}


class Look(NamedTuple):
    """Colour, dash and marker of a kind of run."""

    color: str
    dash: str
    marker: str


BACKWARDS = {
    "masked": Look("#0072B2", "-", "o"),
    "dense": Look("#D55E00", "--", "s"),
    "straight_through": Look("#009E73", "-.", "^"),
}
"""Of each backward pass, in the order that figures show them."""
DENSE_MODEL = Look("#000000", ":", "D")
NO_MASK = Look("#CC79A7", "-", "v")
"""Of runs that have rules, none of them a mask."""

_NAMES = {
    "masked": "masked backward",
    "dense": "dense backward",
    "straight_through": "straight-through",
}


@contextlib.contextmanager
def look() -> Iterator[None]:
    """The look of all figures, while they are made and while they are written."""
    with mpl.rc_context(_LOOK):
        yield


def name_backward(backward: str) -> str:
    """A backward pass as figures call it."""
    return _NAMES.get(backward, backward)


def order_backwards(found: set[str]) -> list[str]:
    """Backward passes in the order that figures show them."""
    return [name for name in BACKWARDS if name in found]


def sort_blocks(blocks: set[str]) -> list[str]:
    """Blocks by families: squares, one row, one column, others; each by its size."""
    return sorted(blocks, key=lambda text: (family(text), *parse_block(text)))


def family(block: str) -> int:
    """0 for a square block, 1 for 1xN, 2 for Nx1, 3 for any other."""
    rows, cols = parse_block(block)
    return 0 if rows == cols else 1 if rows == 1 else 2 if cols == 1 else 3


FAMILIES = ("NxN", "1xN", "Nx1", "others")


def shades(n_shades: int) -> list[tuple[float, float, float]]:
    """Colours of an ordered sequence, the lightest still dark enough on white."""
    colors = mpl.colormaps["viridis"]
    return [to_rgb(colors(0.88 * i / max(1, n_shades - 1))) for i in range(n_shades)]


def percent_axis(axes: Axes, label: str) -> None:
    """Makes the y axis one of percent, for fractions of 1."""
    axes.yaxis.set_major_formatter(as_percent)
    axes.set_ylabel(f"{label} (%)")


def as_percent(value: float | int, position: float | int | None = None) -> str:
    """A tick of a fraction of 1, in percent."""
    return f"{100 * value:.6g}"


def three_digits(value: float) -> str:
    """A positive number with three digits, or with all of those before its point: 1735, 12.3."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def epoch_axis(axes: Axes) -> None:
    """Makes the x axis one of epochs."""
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=6))
