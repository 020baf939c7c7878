"""All blocks at one ratio over the epochs: a panel per backward pass and family of blocks."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from sparsemlp.blocks import parse_block
from sparsemlp.figures.dense_runs import dense_runs
from sparsemlp.figures.drawing import ONE_MASK, Chosen, Drawing, NothingToDrawError
from sparsemlp.figures.legends import height, wrap
from sparsemlp.figures.seed_lines import (
    LINE_COLORS,
    MOST_LINES,
    backward_of,
    draw_seeds,
    masked_at,
    over_seeds,
)
from sparsemlp.figures.style import (
    DASHES,
    DENSE_MODEL,
    FAMILIES,
    WIDTH,
    as_percent,
    epoch_axis,
    family,
    name_backward,
    order_backwards,
    shades,
)
from sparsemlp.studies.labels import Labels
from sparsemlp.studies.seeds import Seeds, by_seed
from sparsemlp.studies.study import Study
from sparsemlp.studies.study_run import StudyRun

_FEW_EPOCHS = 3
"""Below so many a line has markers: of one epoch there would be nothing to see."""


def accuracy_at_ratio(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """Accuracy over the epochs of all blocks at the chosen ratio, a row per backward pass."""
    yield _families(
        study,
        chosen,
        "accuracy_at_ratio",
        lambda run: run.column("test_top1"),
        "test top-1",
        f"Test top-1 after every epoch of all blocks at ratio {chosen.ratio:g}, a row per backward "
        "pass and a column per family of blocks; lines are means over seeds.",
    )


def changed_blocks(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """How many blocks change in an epoch, for all blocks at the chosen ratio."""
    runs = [run for run in study.trained if np.isfinite(run.column("changed_blocks")).any()]
    if not any(run.masking for run in runs):
        raise NothingToDrawError(f"no run with {ONE_MASK} records changed blocks")
    yield _families(
        study,
        chosen,
        "changed_blocks",
        lambda run: run.column("changed_blocks"),
        "blocks changed",
        "Share of the blocks dropped or regrown between the ends of two epochs, of all blocks at "
        f"ratio {chosen.ratio:g}.",
        logarithmic=True,
    )


def _families(
    study: Study,
    chosen: Chosen,
    name: str,
    values: Callable[[StudyRun], np.ndarray],
    label: str,
    caption: str,
    *,
    logarithmic: bool = False,
) -> Drawing:
    """A panel per backward pass and family of blocks, a line a block."""
    groups = by_seed(masked_at(study, chosen.ratio))
    if not groups:
        raise NothingToDrawError(f"no masked run at ratio {chosen.ratio:g} has an epoch")
    backwards = order_backwards({backward_of(group) for group in groups})
    told = Labels([group.first for group in groups])
    variants = sorted({told.variant(group.first) for group in groups})
    families = sorted({family(group.first.block or "1x1") for group in groups})
    width = 2.6 if len(families) == 1 else 0.9
    figure = Figure(figsize=(min(WIDTH, width + 2.1 * len(families)), 0.9 + 2.0 * len(backwards)))
    grid = figure.subplots(
        len(backwards),
        len(families),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    styles = _styles({group.first.block or "" for group in groups}, variants)
    colors = {kind: _colors(groups, kind) for kind in families}
    dense = None if logarithmic else dense_runs(study, [group.first for group in groups])
    for row, backward in enumerate(backwards):
        for column, kind in enumerate(families):
            axes = grid[row, column]
            chosen_groups = [
                group
                for group in groups
                if backward_of(group) == backward and family(group.first.block or "") == kind
            ]
            _blocks(axes, told, chosen_groups, styles, colors[kind], values)
            if dense is not None:
                marker = "." if len(dense.first.records) < _FEW_EPOCHS else ""
                draw_seeds(axes, dense, "test_top1", DENSE_MODEL._replace(marker=marker), None)
            if logarithmic:
                _scale_logarithmically(axes)
            axes.yaxis.set_major_formatter(as_percent)
            if row == 0:
                axes.set_title(f"blocks {FAMILIES[kind]}")
            if column == 0:
                axes.set_ylabel(f"{name_backward(backward)}\n{label} (%)")
            if row == len(backwards) - 1:
                epoch_axis(axes)
    if all(style.color is None for style in styles.values()):
        for axes, kind in zip(grid[0], families, strict=True):
            handles = [Line2D([], [], color=color) for color in colors[kind].values()]
            axes.legend(handles, list(colors[kind]), ncols=2, loc="best", handlelength=1.6)
    if len(variants) > 1:
        _name_variants(figure, styles)
    dotted = ", dotted: dense model" if dense is not None else ""
    blocks = {group.first.block or "" for group in groups}
    alone = f"{blocks.pop()} at " if len(blocks) == 1 else ""
    figure.suptitle(f"{alone}ratio {chosen.ratio:g}{dotted}")
    return Drawing(name, figure, caption)


def _scale_logarithmically(axes: Axes) -> None:
    """An axis of shares on which 0 has its place."""
    axes.set_yscale("symlog", linthresh=1e-3, linscale=0.3)
    axes.set_yticks([0, 1e-3, 1e-2, 1e-1, 1])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, 1.1)


def _colors(groups: Sequence[Seeds], kind: int) -> dict[str, Any]:
    """The colour of each block of a family, the same in all of its panels."""
    blocks = {group.first.block or "" for group in groups}
    own = sorted((block for block in blocks if family(block) == kind), key=parse_block)
    return dict(zip(own, shades(len(own)), strict=True))


class _Style(NamedTuple):
    """The dash of a line, and its colour where that does not say the block."""

    dash: Literal["-", "--", "-.", ":"]
    color: str | None = None


def _styles(blocks: set[str], variants: list[str]) -> dict[str, _Style]:
    """What each of some other options looks like: a dash, or of one block alone also a colour."""
    if len(variants) <= len(DASHES):
        return dict(zip(variants, map(_Style, DASHES), strict=False))
    if len(blocks) > 1 or len(variants) > MOST_LINES:
        raise NothingToDrawError(
            f"{len(variants)} settings of other options are more than the "
            f"{len(DASHES) if len(blocks) > 1 else MOST_LINES} that can be told apart beside "
            f"{len(blocks)} block{'s' * (len(blocks) > 1)}"
        )
    looks = itertools.product(DASHES, LINE_COLORS)
    return dict(zip(variants, itertools.starmap(_Style, looks), strict=False))


def _name_variants(figure: Figure, styles: Mapping[str, _Style]) -> None:
    """A legend of the options in which lines differ besides their blocks, below the panels."""
    width = figure.get_figwidth()
    names = [wrap(variant or "no other option", width=width) for variant in styles]
    figure.set_figheight(figure.get_figheight() + height(names))
    lines = [
        Line2D([], [], color=style.color or "black", linestyle=style.dash)
        for style in styles.values()
    ]
    figure.legend(lines, names, loc="outside lower left", handlelength=3)


def _blocks(
    axes: Axes,
    told: Labels,
    groups: Sequence[Seeds],
    styles: Mapping[str, _Style],
    colors: Mapping[str, Any],
    values: Callable[[StudyRun], np.ndarray],
) -> None:
    """A line a block; other options have a dash of their own, and some a colour."""
    for group in groups:
        block = group.first.block or ""
        style = styles[told.variant(group.first)]
        epochs, mean, _, _ = over_seeds(group, values)
        axes.plot(
            epochs,
            mean,
            style.dash,
            color=style.color or colors[block],
            linewidth=1.1,
            marker="." if len(epochs) < _FEW_EPOCHS else None,
            label=block if style.color is None else None,
        )
