"""Lines over the epochs: the mean over the seeds of a setting, and a band that they span."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes

from sparsemlp.figures.style import BACKWARDS, COLORS, DASHES, DENSE_MODEL, NO_MASK, Look
from sparsemlp.studies.seeds import Seeds
from sparsemlp.studies.study import Study
from sparsemlp.studies.study_run import StudyRun

LINE_COLORS = tuple(color for color in COLORS if color != DENSE_MODEL.color)
"""Of lines that are not the dense model's."""
MOST_LINES = len(LINE_COLORS) * len(DASHES)
"""Settings whose lines can be told apart."""


def looks(groups: Sequence[Seeds]) -> list[Look]:
    """A look for each setting, in their order; beyond `MOST_LINES` they come again.

    The first line of a backward pass, and of dense models, has the look of that kind, as in all
    figures; those behind it have other colours and dashes, and its marker.
    """
    own = [_own_look(group) for group in groups]
    kinds = {(look.dash, look.color) for look in own}
    pairs = itertools.product(DASHES, LINE_COLORS)
    others = itertools.cycle([pair for pair in pairs if pair not in kinds])
    found: list[Look] = []
    for look in own:
        if look in found:
            dash, color = next(others)
            look = Look(color, dash, look.marker)
        found.append(look)
    return found


def _own_look(group: Seeds) -> Look:
    if group.first.is_dense:
        return DENSE_MODEL
    return BACKWARDS[backward_of(group)] if group.first.is_masked else NO_MASK


def draw_seeds(axes: Axes, group: Seeds, key: str, look: Look, label: str | None) -> None:
    """The mean over the seeds, and a band from the lowest to the highest of them."""
    epochs, mean, low, high = over_seeds(group, lambda run: run.column(key))
    axes.plot(
        epochs,
        mean,
        look.dash,
        color=look.color,
        marker=look.marker or None,
        markevery=max(1, len(epochs) // 12),
        markersize=4,
        label=label,
    )
    if len(group.runs) > 1:
        axes.fill_between(epochs, low, high, color=look.color, alpha=0.18, linewidth=0)


def over_seeds(
    group: Seeds, values: Callable[[StudyRun], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Epochs of the seeds, and mean, least and largest value of each."""
    found = np.array([values(run) for run in group.runs])
    epochs = group.first.column("epoch")
    finite = np.where(np.isfinite(found), found, np.nan)
    return epochs, finite.mean(axis=0), finite.min(axis=0), finite.max(axis=0)


def backward_of(group: Seeds) -> str:
    """The backward pass of the masked layers of a setting; `masked` without masks."""
    return group.first.backward or "masked"


def masked_at(study: Study, ratio: float, block: str | None = None) -> list[StudyRun]:
    """The masked runs with an epoch at a ratio, of one block if it is given."""
    return [
        run
        for run in study.trained
        if run.masking is not None
        and run.masking.ratio == ratio
        and (block is None or run.block == block)
    ]
