"""Lines over the epochs: the mean over the seeds of a setting, and a band that they span."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes

from sparsemlp.figures.style import Look
from sparsemlp.seeds import Seeds
from sparsemlp.study import Study
from sparsemlp.study_run import StudyRun


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
    return "masked" if group.first.masking is None else group.first.masking.backward


def masked_at(study: Study, ratio: float, block: str | None = None) -> list[StudyRun]:
    """The masked runs with an epoch at a ratio, of one block if it is given."""
    return [
        run
        for run in study.trained
        if run.masking is not None
        and run.masking.ratio == ratio
        and (block is None or run.block == block)
    ]
