"""The backward passes beside each other: over the ratios of a block, and over all blocks."""

import math
from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparsemlp.figures.dense_runs import dense_top1
from sparsemlp.figures.drawing import Chosen, Drawing, NothingToDrawError
from sparsemlp.figures.style import (
    BACKWARDS,
    DENSE_MODEL,
    WIDTH,
    as_percent,
    name_backward,
    order_backwards,
    percent_axis,
    sort_blocks,
)
from sparsemlp.seeds import Seeds, by_seed
from sparsemlp.study import Study


def backwards(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """Accuracy of each backward pass: the chosen block over ratios, all blocks at the ratio."""
    groups = [group for group in by_seed(study.finished) if group.first.masking is not None]
    found = order_backwards({g.first.masking.backward for g in groups if g.first.masking})
    if len(found) < 2:
        had = f"all finished masked runs have the {found[0]} one" if found else "there is no run"
        raise NothingToDrawError(f"a comparison takes two backward passes: {had}")
    of_block = [g for g in groups if g.first.block == chosen.block]
    of_ratio = [g for g in groups if g.first.masking and g.first.masking.ratio == chosen.ratio]
    over_ratios = len({g.first.masking.ratio for g in of_block if g.first.masking}) > 1
    if not of_ratio and not over_ratios:
        raise NothingToDrawError(
            f"no finished run at ratio {chosen.ratio:g}, nor {chosen.block} at several ratios"
        )
    blocks = sort_blocks({g.first.block or "" for g in of_ratio})
    dense = dense_top1(study, [group.first for group in groups])
    height = max(2.4 if over_ratios else 1.6, 1.1 + 0.21 * len(blocks))
    panels = int(over_ratios) + bool(of_ratio)
    figure = Figure(figsize=(WIDTH if panels == 2 else 0.75 * WIDTH, height + 0.5))
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    if over_ratios:
        _over_ratios(axes[0], of_block, found, dense)
        axes[0].set_title(chosen.block)
    if of_ratio:
        _over_blocks(axes[-1], of_ratio, blocks, found, dense)
        axes[-1].set_title(f"ratio {chosen.ratio:g}")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    yield Drawing(
        "backwards",
        figure,
        f"Test top-1 of the last epoch with each backward pass: {chosen.block} over the ratios, "
        f"and all blocks at ratio {chosen.ratio:g}; bars are standard deviations over seeds.",
    )


def _over_ratios(
    axes: Axes, groups: list[Seeds], names: list[str], dense: tuple[float, float] | None
) -> None:
    for name in names:
        own = sorted(
            (g for g in groups if g.first.masking and g.first.masking.backward == name),
            key=lambda g: g.first.masking.ratio if g.first.masking else 0,
        )
        look = BACKWARDS[name]
        tops, spreads = _tops(own)
        axes.errorbar(
            [g.first.masking.ratio for g in own if g.first.masking],
            tops,
            yerr=spreads,
            fmt=look.marker,
            linestyle=look.dash,
            color=look.color,
            label=name_backward(name),
            capsize=2,
        )
    if dense is not None:
        axes.axhline(dense[0], linestyle=DENSE_MODEL.dash, color="black", label="dense model")
    percent_axis(axes, "test top-1")
    axes.set_xlabel("ratio")


def _over_blocks(
    axes: Axes,
    groups: list[Seeds],
    blocks: list[str],
    names: list[str],
    dense: tuple[float, float] | None,
) -> None:
    """A row a block; the grey line spans its backward passes."""
    for row, block in enumerate(blocks):
        tops = [g.top1()[0] for g in groups if g.first.block == block]
        axes.plot((min(tops), max(tops)), (row, row), color="#c3cad0", linewidth=1, zorder=1)
    for name in names:
        own = [g for g in groups if g.first.masking and g.first.masking.backward == name]
        look = BACKWARDS[name]
        tops, spreads = _tops(own)
        axes.errorbar(
            tops,
            [blocks.index(g.first.block or "") for g in own],
            xerr=spreads,
            fmt=look.marker,
            color=look.color,
            label=name_backward(name),
            capsize=2,
        )
    if dense is not None:
        axes.axvline(dense[0], linestyle=DENSE_MODEL.dash, color="black", label="dense model")
    axes.set_yticks(range(len(blocks)), blocks)
    axes.set_ylim(len(blocks) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(as_percent)
    axes.set_xlabel("test top-1 (%)")
    axes.grid(visible=False, axis="y")


def _tops(groups: list[Seeds]) -> tuple[list[float], list[float] | None]:
    tops = [group.top1() for group in groups]
    spreads = [0.0 if math.isnan(spread) else spread for _, spread in tops]
    return [top for top, _ in tops], spreads if any(spreads) else None
