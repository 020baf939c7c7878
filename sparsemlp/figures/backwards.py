"""The backward passes beside each other: over the ratios of a block, and over all blocks."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparsemlp.figures.dense_runs import named_dense_runs
from sparsemlp.figures.drawing import ONE_MASK, Chosen, Drawing, NothingToDrawError
from sparsemlp.figures.legends import columns_for, height, wrap, wrap_to
from sparsemlp.figures.seed_lines import backward_of
from sparsemlp.figures.style import (
    BACKWARDS,
    DASHES,
    DENSE_MODEL,
    WIDTH,
    as_percent,
    name_backward,
    order_backwards,
    percent_axis,
    sort_blocks,
)
from sparsemlp.studies.labels import Labels
from sparsemlp.studies.seeds import Seeds, by_seed
from sparsemlp.studies.study import Study

_ROW_CHARACTERS = 30
"""Of a line of a row's name, beside a panel."""
_MOST_ROW_LINES = 100
"""Of all names of rows together: two pages."""

_DENSE_DASHES = (DENSE_MODEL.dash, *(dash for dash in DASHES if dash != DENSE_MODEL.dash))


def backwards(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """Accuracy of each backward pass: the chosen block over ratios, all blocks at the ratio."""
    groups = [group for group in by_seed(study.finished) if group.first.masking is not None]
    found = order_backwards({g.first.masking.backward for g in groups if g.first.masking})
    if len(found) < 2:
        had = f"there is only the {found[0]} one" if found else "there is none"
        raise NothingToDrawError(
            f"a comparison takes two backward passes of finished runs with {ONE_MASK}: {had}"
        )
    of_block = [g for g in groups if g.first.block == chosen.block]
    of_ratio = [g for g in groups if g.first.masking and g.first.masking.ratio == chosen.ratio]
    lines = _lines(of_block)
    variants = {variant for _, variant in lines}
    over_ratios = any(len({g.first.ratio for g in line}) > 1 for line in lines.values())
    over_ratios &= len(variants) <= len(DASHES)
    if not of_ratio and not over_ratios:
        several = f"several ratios, {len(DASHES)} settings of other options at most"
        raise NothingToDrawError(
            f"no finished run at ratio {chosen.ratio:g}, nor {chosen.block} at {several}"
        )
    rows = _rows(of_ratio)
    n_lines = sum(1 + row.count("\n") for row in rows)
    if n_lines > _MOST_ROW_LINES:
        if not over_ratios:
            raise NothingToDrawError(
                f"{len(rows)} settings at ratio {chosen.ratio:g} are more rows than a page holds"
            )
        of_ratio, rows, n_lines = [], {}, 0
    dense = named_dense_runs(study, [group.first for group in groups])
    high = max(2.4 if over_ratios else 1.6, 1.1 + 0.21 * n_lines)
    panels = int(over_ratios) + bool(of_ratio)
    figure = Figure(figsize=(WIDTH if panels == 2 else 0.75 * WIDTH, high + 0.5))
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    if over_ratios:
        _over_ratios(axes[0], lines, found, dense)
        axes[0].set_title(chosen.block)
    if of_ratio:
        _over_blocks(axes[-1], rows, found, dense)
        axes[-1].set_title(f"ratio {chosen.ratio:g}")
    shown = [f"{chosen.block} over the ratios"] if over_ratios else []
    shown += [f"all blocks at ratio {chosen.ratio:g}"] if of_ratio else []
    entries = _entries(axes)
    handles, labels = list(entries.values()), list(entries)
    width = figure.get_figwidth()
    columns = columns_for(labels, most=4, width=width)
    labels = [wrap(label, columns, width) for label in labels]
    figure.set_figheight(high + 0.34 + height(labels, columns))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    yield Drawing(
        "backwards",
        figure,
        f"Test top-1 of the last epoch with each backward pass: {' and '.join(shown)}; bars are "
        "standard deviations over seeds.",
    )


def _entries(panels: list[Axes]) -> dict[str, Any]:
    """The handle of each name in the legend; a pass that the first panel has is not named again."""
    entries: dict[str, Any] = {}
    for axes in panels:
        handles, names = axes.get_legend_handles_labels()
        # There it may be named with what else sets its runs apart.
        known = {n for n in names for other in entries if f"{other}, ".startswith(f"{n}, ")}
        entries |= {n: h for h, n in zip(handles, names, strict=True) if n not in known}
    return entries


def _lines(groups: list[Seeds]) -> dict[tuple[str, str], list[Seeds]]:
    """The settings of a block by backward pass and what else sets them apart but the ratio."""
    labels = Labels([group.first for group in groups])
    lines: dict[tuple[str, str], list[Seeds]] = {}
    for group in sorted(groups, key=lambda g: g.first.ratio or 0.0):
        lines.setdefault((backward_of(group), labels.variant(group.first)), []).append(group)
    return lines


def _rows(groups: list[Seeds]) -> dict[str, list[Seeds]]:
    """The settings by block and whatever else sets them apart but the backward pass, as text."""
    labels = Labels([group.first for group in groups])
    rows: dict[str, list[Seeds]] = {}
    for block in sort_blocks({g.first.block or "" for g in groups}):
        own = [g for g in groups if (g.first.block or "") == block]
        for group in sorted(own, key=lambda g: labels.variant(g.first)):
            variant = labels.variant(group.first)
            name = f"{block}\n{wrap_to(variant, _ROW_CHARACTERS)}" if variant else block
            rows.setdefault(name, []).append(group)
    return rows


def _over_ratios(
    axes: Axes,
    lines: dict[tuple[str, str], list[Seeds]],
    names: list[str],
    dense: dict[str, Seeds],
) -> None:
    """A line a backward pass and variant, dashed by the latter if there are several."""
    variants = sorted({variant for _, variant in lines})
    for name, variant in itertools.product(names, variants):
        own = lines.get((name, variant), [])
        if not own:
            continue
        look = BACKWARDS[name]
        several = len(variants) > 1
        tops, spreads = _tops(own)
        axes.errorbar(
            [group.first.ratio or 0.0 for group in own],
            tops,
            yerr=spreads,
            fmt=look.marker,
            linestyle=DASHES[variants.index(variant)] if several else look.dash,
            color=look.color,
            label=name_backward(name) + (f", {variant}" if several and variant else ""),
            capsize=2,
        )
    for (name, group), dash in zip(dense.items(), itertools.cycle(_DENSE_DASHES)):
        axes.axhline(group.top1()[0], linestyle=dash, color="black", label=name)
    percent_axis(axes, "test top-1")
    axes.set_xlabel("ratio")


def _over_blocks(
    axes: Axes,
    rows: dict[str, list[Seeds]],
    names: list[str],
    dense: dict[str, Seeds],
) -> None:
    """The grey line of a row spans its backward passes."""
    for row, groups in enumerate(rows.values()):
        tops = [group.top1()[0] for group in groups]
        axes.plot((min(tops), max(tops)), (row, row), color="#c3cad0", linewidth=1, zorder=1)
    placed = [(row, group) for row, groups in enumerate(rows.values()) for group in groups]
    for name in names:
        own = [
            (row, group)
            for row, group in placed
            if group.first.masking and group.first.masking.backward == name
        ]
        if not own:
            continue
        look = BACKWARDS[name]
        tops, spreads = _tops([group for _, group in own])
        axes.errorbar(
            tops,
            [row for row, _ in own],
            xerr=spreads,
            fmt=look.marker,
            color=look.color,
            label=name_backward(name),
            capsize=2,
        )
    for (name, group), dash in zip(dense.items(), itertools.cycle(_DENSE_DASHES)):
        axes.axvline(group.top1()[0], linestyle=dash, color="black", label=name)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(as_percent)
    axes.set_xlabel("test top-1 (%)")
    axes.grid(visible=False, axis="y")


def _tops(groups: list[Seeds]) -> tuple[list[float], list[float] | None]:
    tops = [group.top1() for group in groups]
    spreads = [0.0 if math.isnan(spread) else spread for _, spread in tops]
    return [top for top, _ in tops], spreads if any(spreads) else None
