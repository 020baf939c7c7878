"""Heat maps block x ratio: accuracy and memory movement in each cell, one per backward pass."""

import math
from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from sparsemlp.figures.dense_runs import dense_top1
from sparsemlp.figures.drawing import ONE_MASK, Chosen, Drawing, NothingToDrawError
from sparsemlp.figures.legends import wrap_title
from sparsemlp.figures.style import (
    SEQUENCE,
    WIDTH,
    as_percent,
    name_backward,
    order_backwards,
    sort_blocks,
    three_digits,
)
from sparsemlp.studies.run_costs import run_costs
from sparsemlp.studies.seeds import by_seed, percent, statistics
from sparsemlp.studies.study import Study
from sparsemlp.studies.study_run import StudyRun

Cells = dict[tuple[str, float], list[StudyRun]]


def heat_maps(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """Accuracy and GB of each block and ratio, a map per backward pass and per other options."""
    masked = [run for run in study.runs if run.masking is not None]
    if not any(run.status == "finished" for run in masked):
        raise NothingToDrawError(f"no finished run has {ONE_MASK}")
    groups: dict[tuple[str, str], Cells] = {}
    for backward in order_backwards({run.masking.backward for run in masked if run.masking}):
        for run in masked:
            if run.masking is not None and run.masking.backward == backward:
                cells = groups.setdefault((backward, study.variant(run)), {})
                cells.setdefault((run.block or "", run.masking.ratio), []).append(run)
    groups = {key: cells for key, cells in groups.items() if len(cells) > 1}
    if not any(_finished(cells) for cells in groups.values()):
        raise NothingToDrawError("a map takes masked runs of several blocks or ratios, finished")
    counts: dict[str, int] = {}
    for (backward, variant), cells in groups.items():
        if not _finished(cells):
            continue
        counts[backward] = counts.get(backward, 0) + 1
        number = "" if counts[backward] == 1 else f"_{counts[backward]}"
        title = name_backward(backward) + (f", {variant}" if variant else "")
        yield Drawing(
            f"heat_map_{backward}{number}",
            _draw(study, cells, title),
            f"Test top-1 of the last epoch (%) and memory movement of the run by the thesis' model "
            f"(theoretical, GB of 2^30 bytes) for each block and ratio, {title}.",
        )


def _finished(cells: Cells) -> list[StudyRun]:
    return [run for runs in cells.values() for run in runs if run.status == "finished"]


def _draw(study: Study, cells: Cells, title: str) -> Figure:
    scale = _scale([run.last("test_top1") for run in _finished(cells)])
    blocks = sort_blocks({block for block, _ in cells})
    ratios = sorted({ratio for _, ratio in cells})
    colors = mpl.colormaps[SEQUENCE]
    width = max(3.6, min(WIDTH, 1.7 + 0.62 * len(ratios)))
    dense = dense_top1(study, _finished(cells))
    heading = title if dense is None else f"{title}; dense model {percent(*dense)}"
    heading, more = wrap_title(heading, width)
    height = max(2.3, 1.3 + 0.38 * len(blocks)) + more
    figure = Figure(figsize=(width, height))
    axes = figure.subplots()
    axes.set(xlim=(0, len(ratios)), ylim=(len(blocks), 0), xlabel="ratio", ylabel="block")
    axes.set_xticks(np.arange(len(ratios)) + 0.5, [f"{ratio:g}" for ratio in ratios])
    axes.set_yticks(np.arange(len(blocks)) + 0.5, blocks)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    for row, block in enumerate(blocks):
        for column, ratio in enumerate(ratios):
            runs = cells.get((block, ratio), [])
            top1, words = _words(runs)
            known = not math.isnan(top1)
            face = colors(scale(top1)) if known else "white"
            patch = Rectangle((column, row), 1, 1, facecolor=face, edgecolor="white", linewidth=1)
            if not known:
                patch.set(hatch="////", edgecolor="#d5dade", linewidth=0)
            axes.add_patch(patch)
            light = known and np.dot(face[:3], (0.299, 0.587, 0.114)) > 0.5
            color = "black" if light or not known else "white"
            size = 7 if len(words[0]) < 8 else 5.5
            axes.text(
                column + 0.5,
                row + 0.5,
                "\n".join(words),
                ha="center",
                va="center",
                color=color,
                fontsize=size,
                linespacing=1.1,
            )
    figure.suptitle(heading)
    bar = figure.colorbar(
        ScalarMappable(scale, SEQUENCE),
        ax=axes,
        label="test top-1 (%),\nGB below",
        format=FuncFormatter(as_percent),
        fraction=0.04,
    )
    bar.outline.set_visible(False)
    return figure


def _scale(accuracies: list[float]) -> Normalize:
    """From the lowest to the highest, at least a point."""
    low, high = min(accuracies), max(accuracies)
    return Normalize(low, max(high, low + 0.01))


def _words(runs: list[StudyRun]) -> tuple[float, list[str]]:
    """Mean accuracy of a cell, NaN without one, and its lines."""
    groups = by_seed(run for run in runs if run.status == "finished")
    if not groups:
        return math.nan, [runs[0].status if runs else "not run"]
    finished = groups[0].runs
    mean, spread = statistics([run.last("test_top1") for run in finished])
    if math.isnan(mean):
        return mean, ["unknown"]
    words = [f"{100 * mean:.1f}" + ("" if math.isnan(spread) else f"±{100 * spread:.1f}")]
    gb, _ = groups[0].statistics(_movement_gb)
    if not math.isnan(gb):
        words.append(f"{three_digits(gb)} GB")
    return mean, words


def _movement_gb(run: StudyRun) -> float:
    costs = run_costs(run)
    return math.nan if costs is None else costs.thesis_movement_gb
