"""Accuracy against what it costs, and the runs that no other one beats in both."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sparsemlp.figures.drawing import Chosen, Drawing, NothingToDrawError
from sparsemlp.figures.legends import height, wrap
from sparsemlp.figures.seed_lines import backward_of
from sparsemlp.figures.style import (
    BACKWARDS,
    DENSE_MODEL,
    MUTED,
    NO_MASK,
    WIDTH,
    Look,
    name_backward,
    percent_axis,
    three_digits,
)
from sparsemlp.studies.run_costs import run_costs
from sparsemlp.studies.seeds import by_seed, percent, setting_of
from sparsemlp.studies.study import Study
from sparsemlp.studies.study_run import StudyRun

_APART = 0.05
"""Of the cost axis: of runs of the front that are nearer only the most accurate has a number."""


class Point(NamedTuple):
    """A setting: its cost, its accuracy as a fraction of 1 with the spread over seeds."""

    cost: float
    top1: float
    spread: float
    name: str
    kind: str


def step_time(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """Accuracy against the measured time of a training step, a figure a device."""
    timed = [run for run in study.finished if math.isfinite(run.step_ms)]
    if not timed:
        raise NothingToDrawError(
            "no finished run that was trained by itself records the time of its steps"
        )
    devices = list(dict.fromkeys(run.device for run in timed))
    for number, device in enumerate(devices, start=1):
        own = [run for run in timed if run.device == device]
        figure = _draw(
            _points(study, own, lambda run: run.step_ms),
            f"measured on {device or 'an unknown device'}",
            "training step, median of the last epochs (ms)",
            "ms",
        )
        yield Drawing(
            "step_time" if len(devices) == 1 else f"step_time_{number}",
            figure,
            "Test top-1 of the last epoch, over all seeds, against the measured time of a training "
            f"step on {device or 'an unknown device'}; filled runs are those that no other one "
            "beats in both, of near ones the most accurate has a number. Times of runs that shared "
            "the machine with others are not comparable.",
        )


def loaded_weights(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """Accuracy against the weights that the forward passes load."""
    known = [run for run in study.finished if run_costs(run) is not None]
    if not known:
        raise NothingToDrawError("no finished ResMLP run on a data set that the cost models know")
    figure = _draw(
        _points(study, known, _billions_loaded),
        "theoretical: weights that all forward passes load",
        "loaded weights (billions)",
        "billion",
    )
    yield Drawing(
        "loaded_weights",
        figure,
        "Test top-1 of the last epoch against the weights that all forward passes of the run load "
        "(theoretical; as in the thesis dense epochs before the masks count as masked). Filled "
        "runs are those that no other one beats in both, of near ones the most accurate has a "
        "number.",
    )


def front(points: list[Point]) -> list[Point]:
    """The points that no other one beats: none is as cheap and better, or as good and cheaper."""
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (p.cost, -p.top1)):
        if not found or point.top1 > found[-1].top1:
            found.append(point)
    return found


def spread_out(points: list[Point], apart: float) -> list[Point]:
    """Of a front the points that are so far apart in cost, the most accurate first to be taken."""
    found: list[Point] = []
    for point in sorted(points, key=lambda p: -p.cost):
        if not found or found[-1].cost - point.cost >= apart:
            found.append(point)
    return found[::-1]


def _billions_loaded(run: StudyRun) -> float:
    costs = run_costs(run)
    return math.nan if costs is None else costs.loaded_elements / 1e9


def _points(
    study: Study, runs: Iterable[StudyRun], cost: Callable[[StudyRun], float]
) -> list[Point]:
    """The settings of some finished runs: what those cost, and the accuracy over all its seeds."""
    every = {setting_of(group.first): group for group in by_seed(study.finished)}
    points = []
    for group in by_seed(runs):
        run, (top1, spread) = group.first, every[setting_of(group.first)].top1()
        kind = "dense model" if run.is_dense else backward_of(group) if run.is_masked else "none"
        points.append(Point(group.statistics(cost)[0], top1, spread, study.label(run), kind))
    return points


def _look(kind: str) -> tuple[Look, str]:
    if kind in BACKWARDS:
        return BACKWARDS[kind], name_backward(kind)
    return (DENSE_MODEL, kind) if kind == "dense model" else (NO_MASK, "no mask, other rules")


def _draw(points: list[Point], title: str, label: str, unit: str) -> Figure:
    best = front(points)
    numbered = spread_out(best, _APART * max(point.cost for point in points))
    named = [
        wrap(
            f"{number}  {point.name}: {percent(point.top1, point.spread)}, "
            f"{three_digits(point.cost)} {unit}"
        )
        for number, point in enumerate(numbered, start=1)
    ]
    figure = Figure(figsize=(WIDTH, 3.4 + height(named)))
    axes = figure.subplots()
    for kind in dict.fromkeys(point.kind for point in points):
        look, name = _look(kind)
        own = [point for point in points if point.kind == kind]
        spreads = [0.0 if math.isnan(point.spread) else point.spread for point in own]
        axes.errorbar(
            [point.cost for point in own],
            [point.top1 for point in own],
            yerr=spreads if any(spreads) else None,
            fmt=look.marker,
            color=look.color,
            markerfacecolor="none",
            markersize=4.5,
            elinewidth=0.8,
            label=name,
        )
    _mark_front(axes, best, numbered)
    percent_axis(axes, "test top-1")
    axes.set(xlabel=label, title=title)
    axes.margins(0.06)
    axes.set_xlim(left=0)
    axes.legend(loc="best")
    several = "" if len(best) == len(numbered) else ", of near ones the most accurate listed"
    figure.legend(
        [Line2D([], [], linestyle="")] * len(named),
        named,
        loc="outside lower left",
        title=f"Pareto front: {len(best)} setting{'s' * (len(best) > 1)}, filled{several}",
        alignment="left",
        handlelength=0,
        handletextpad=0,
    )
    return figure


def _mark_front(axes: Axes, best: list[Point], numbered: list[Point]) -> None:
    axes.step(
        [point.cost for point in best],
        [point.top1 for point in best],
        where="post",
        color=MUTED,
        linewidth=0.9,
        zorder=1,
    )
    for point in best:
        look = _look(point.kind)[0]
        axes.plot(point.cost, point.top1, look.marker, color=look.color, markersize=4.5)
    for number, point in enumerate(numbered, start=1):
        axes.annotate(
            str(number),
            (point.cost, point.top1),
            xytext=(-3, 4),
            textcoords="offset points",
            ha="right",
            fontsize=7.5,
            fontweight="bold",
        )
