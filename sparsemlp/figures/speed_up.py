"""Where block sparsity pays: speed-up over dense against devices, and what bounds each step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from sparsemlp.cost_models.scaling_points import ScalingPoint
from sparsemlp.figures.drawing import Drawing
from sparsemlp.figures.legends import wrap_title
from sparsemlp.figures.style import BACKWARDS, COLORS, MUTED, WIDTH, Look, name_backward

_LOOKS = {
    "masked_fused": Look(COLORS[5], "-", "D"),
    "masked": BACKWARDS["masked"],
    "straight_through": BACKWARDS["straight_through"],
    "dense_backward": BACKWARDS["dense"],
}
_NAMES = {
    "dense_model": "dense model",
    "masked_fused": "masked, fused MLP",
    "dense_backward": name_backward("dense"),
}
_OPEN = {"straight_through": 6, "dense_backward": 4.5}
_BOUNDS = {
    "compute": ("C", "#f2f2f2", "arithmetic"),
    "memory": ("M", "#b9d7ea", "memory"),
    "exchange: bandwidth": ("B", "#f4c58a", "exchange, bandwidth"),
    "exchange: latency": ("L", "#d98b6a", "exchange, latency"),
}
"""Of each bound its letter, its colour and its name."""


def name_variant(variant: str) -> str:
    """A variant as figures call it."""
    return _NAMES.get(variant, name_backward(variant))


def draw_scaling(panels: Mapping[str, Sequence[ScalingPoint]], title: str) -> Drawing:
    """The picture of `scaling_points`, a column of panels for each way to scale.

    Args:
      panels: the points of each, by its title.
      title: of the whole picture.
    """
    variants = list(dict.fromkeys(p.variant for points in panels.values() for p in points))
    title, more = wrap_title(title)
    figure = Figure(figsize=(WIDTH, 3.4 + more + 0.19 * len(variants)))
    rows = figure.subplots(
        2,
        len(panels),
        squeeze=False,
        sharex="col",
        sharey="row",
        height_ratios=(2.6, 0.19 * len(variants)),
    )
    for column, (name, points) in enumerate(panels.items()):
        above, below = rows[:, column]
        _curves(above, points)
        above.set_title(name)
        _bounds(below, points, variants)
    rows[0, 0].set_ylabel("speed-up over dense")
    figure.legend(handles=_legend(variants), loc="outside lower center", ncols=3)
    figure.suptitle(title)
    return Drawing(
        "scaling",
        figure,
        "Theoretical speed-up of block sparsity over the dense model against the number of "
        "devices, at both ends: arithmetic, memory traffic and exchange of gradients overlapped "
        "(thick), and one after another (thin); below, which of them bounds the overlapped step.",
    )


def _legend(variants: Sequence[str]) -> list[Line2D | Patch]:
    curves = [
        Line2D([], [], label=name_variant(variant), **_style(variant))
        for variant in _LOOKS
        if variant in variants
    ]
    thin = Line2D([], [], color=MUTED, linewidth=0.7, label="thin: nothing overlaps")
    bounds = [
        Patch(facecolor=color, edgecolor=MUTED, linewidth=0.5, label=f"{letter}: bound by {what}")
        for letter, color, what in _BOUNDS.values()
    ]
    return [*curves, thin, *bounds]


def _style(variant: str) -> dict[str, Any]:
    """Of a curve; markers of what often lies on one line are open, and of several sizes."""
    own = _LOOKS[variant]
    return {
        "color": own.color,
        "linestyle": own.dash,
        "marker": own.marker,
        "markersize": _OPEN.get(variant, 3.5),
        "markerfacecolor": "none" if variant in _OPEN else own.color,
    }


def _curves(axes: Axes, points: Sequence[ScalingPoint]) -> None:
    axes.axhline(1, color=MUTED, linewidth=0.8)
    for variant in _LOOKS:
        own = [point for point in points if point.variant == variant]
        if not own:
            continue
        devices, style = [point.devices for point in own], _style(variant)
        overlapped, serial = [p.speed_up for p in own], [p.serial_speed_up for p in own]
        axes.fill_between(
            devices, overlapped, serial, color=style["color"], alpha=0.12, linewidth=0
        )
        axes.plot(devices, serial, style["linestyle"], color=style["color"], linewidth=0.7)
        axes.plot(devices, overlapped, **style)
    _ceilings(axes, points)
    axes.set_xscale("log", base=2)


def _ceilings(axes: Axes, points: Sequence[ScalingPoint]) -> None:
    """What the masked backward can gain at most, in arithmetic and in bytes exchanged."""
    costs = {point.variant: point.costs for point in points}
    dense, masked = costs["dense_model"], costs["masked"]
    flops = dense.flops / masked.flops
    sent = dense.exchanged_bytes / masked.exchanged_bytes
    for ratio in (flops, sent):
        axes.axhline(ratio, color=MUTED, linewidth=0.7, linestyle=":")
    axes.annotate(
        f"dotted, dense / masked: FLOPs {flops:.2f}, bytes exchanged {sent:.2f}",
        (0.02, 0.98),
        xycoords="axes fraction",
        va="top",
        fontsize=6.5,
        color=MUTED,
    )
    axes.set_ylim(0, max(axes.get_ylim()[1], 1.18 * max(flops, sent)))


def _bounds(axes: Axes, points: Sequence[ScalingPoint], variants: Sequence[str]) -> None:
    """A row a variant, a cell a number of devices."""
    keys = list(_BOUNDS)
    devices = sorted({point.devices for point in points})
    edges = _edges(devices)
    codes = np.full((len(variants), len(devices)), np.nan)
    for point in points:
        row, column = variants.index(point.variant), devices.index(point.devices)
        codes[row, column] = keys.index(point.time.bound)
        axes.text(
            point.devices,
            row,
            _BOUNDS[point.time.bound][0],
            ha="center",
            va="center",
            fontsize=6.5,
        )
    colors = ListedColormap([color for _, color, _ in _BOUNDS.values()])
    axes.pcolormesh(
        edges,
        np.arange(len(variants) + 1) - 0.5,
        codes,
        cmap=colors,
        vmin=-0.5,
        vmax=len(keys) - 0.5,
        edgecolors="white",
        linewidth=0.6,
    )
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.set_yticks(range(len(variants)), [name_variant(variant) for variant in variants])
    axes.tick_params(length=0)
    axes.set_xticks(devices, [str(n) for n in devices])
    axes.minorticks_off()
    axes.set_xlabel("devices")
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _edges(devices: Sequence[int]) -> np.ndarray:
    """Borders of cells around numbers of devices, halfway between them in their logarithms."""
    logs = np.log2(devices)
    if len(logs) == 1:
        return 2 ** np.array([logs[0] - 0.5, logs[0] + 0.5])
    middle = (logs[1:] + logs[:-1]) / 2
    ends = (2 * logs[0] - middle[0], 2 * logs[-1] - middle[-1])
    return 2 ** np.concatenate([[ends[0]], middle, [ends[1]]])
