"""Accuracy and loss over the epochs."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from sparsemlp.figures.dense_runs import dense_runs
from sparsemlp.figures.drawing import Chosen, Drawing, NothingToDrawError
from sparsemlp.figures.seed_lines import backward_of, draw_seeds, masked_at
from sparsemlp.figures.style import (
    BACKWARDS,
    COLORS,
    DASHES,
    DENSE_MODEL,
    WIDTH,
    Look,
    epoch_axis,
    name_backward,
    percent_axis,
)
from sparsemlp.seeds import Seeds, by_seed, percent
from sparsemlp.study import Study

_MOST_LINES = len(COLORS) * len(DASHES)


def accuracy(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """Test top-1 over the epochs, a line for every setting."""
    groups = by_seed(study.trained)
    if not groups:
        raise NothingToDrawError("no run has a finished epoch")
    if len(groups) > _MOST_LINES:
        raise NothingToDrawError(
            f"{len(groups)} settings are more lines than the {_MOST_LINES} that can be told apart; "
            "accuracy_at_ratio has those of one ratio"
        )
    height = 2.6 + 0.16 * len(groups)
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.subplots()
    looks = _own_looks(groups)
    for group, look in zip(groups, looks, strict=True):
        if len(group.first.records) >= 40:
            look = look._replace(marker="")
        draw_seeds(axes, group, "test_top1", look, f"{_name(study, group)}: {_last(group)}")
    percent_axis(axes, "test top-1")
    epoch_axis(axes)
    models = ", ".join(sorted({run.model for run in study.trained}))
    axes.set_title(f"{models} on {', '.join(sorted({run.dataset for run in study.trained}))}")
    figure.legend(loc="outside lower left", title="last epoch", alignment="left")
    yield Drawing("accuracy", figure, "Test top-1 after every epoch, a line a setting.")


def _own_looks(groups: Sequence[Seeds]) -> list[Look]:
    """Those of the backward passes where each line has its own; else one colour after another."""
    known = BACKWARDS | {"dense model": DENSE_MODEL}
    kinds = ["dense model" if g.first.is_dense else backward_of(g) for g in groups]
    if len(set(kinds)) == len(kinds) and all(g.first.is_dense or g.first.masking for g in groups):
        return [known[kind] for kind in kinds]
    colors, dashes = len(COLORS), len(DASHES)
    return [Look(COLORS[i % colors], DASHES[i // colors % dashes], ".") for i in range(len(groups))]


def curves(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """Accuracy and loss of the chosen block and ratio, a line per backward pass."""
    groups = by_seed(masked_at(study, chosen.ratio, chosen.block))
    if not groups:
        raise NothingToDrawError(f"no run of {chosen.block} at {chosen.ratio:g} has an epoch")
    dense = dense_runs(study, [group.first for group in groups])
    figure = Figure(figsize=(WIDTH, 3.0 + 0.08 * len(groups)))
    top1, loss = figure.subplots(1, 2)
    used: dict[str, int] = {}
    groups.sort(key=lambda group: list(BACKWARDS).index(backward_of(group)))
    named = [(group, *_look(study, group, used)) for group in groups]
    named += [(dense, DENSE_MODEL, "dense model")] if dense is not None else []
    for group, look, name in named:
        plain = look._replace(marker="" if len(group.first.records) >= 40 else look.marker)
        behind = f", {group.count}" if group.n_behind else ""
        draw_seeds(top1, group, "test_top1", plain, f"{name}{behind}: {_last(group)}")
        draw_seeds(loss, group, "loss", plain, None)
    percent_axis(top1, "test top-1")
    loss.set_ylabel("training loss (nats)")
    finite = np.concatenate([run.column("loss") for group, *_ in named for run in group.runs])
    if finite.size and np.nanmax(finite[np.isfinite(finite)], initial=0.0) > 20:
        loss.set_yscale("log")
        loss.yaxis.set_major_formatter(_as_power)
        loss.yaxis.set_minor_formatter(NullFormatter())
    for axes in (top1, loss):
        epoch_axis(axes)
    figure.suptitle(f"{chosen.block} at ratio {chosen.ratio:g}")
    figure.legend(
        loc="outside lower left", title="top-1 of the last epoch", alignment="left", ncols=2
    )
    yield Drawing(
        "curves",
        figure,
        f"Test top-1 and training loss over the epochs of {chosen.block} at ratio "
        f"{chosen.ratio:g}; bands span the seeds.",
    )


def _as_power(value: float | int, position: float | int | None = None) -> str:
    return f"{value:.0e}" if value > 999 else f"{value:g}"


def _look(study: Study, group: Seeds, used: dict[str, int]) -> tuple[Look, str]:
    """The look and the name of a group; a further one of the same backward has its own colour."""
    backward = backward_of(group)
    number = used[backward] = used.get(backward, -1) + 1
    look = BACKWARDS[backward]
    if number:
        look = look._replace(color=COLORS[(3 + number) % len(COLORS)], dash=DASHES[number % 4])
    variant = study.variant(group.first)
    return look, name_backward(backward) + (f", {variant}" if variant else "")


def _name(study: Study, group: Seeds) -> str:
    run = group.first
    seeds = f", {group.count}" if group.count else ""
    if not seeds and len({other.settings.seed for other in study.trained if other.settings}) > 1:
        seeds = f", seed {run.settings.seed}" if run.settings is not None else ""
    return study.label(run) + seeds


def _last(group: Seeds) -> str:
    run = group.first
    words = percent(*group.top1())
    planned = 0 if run.settings is None else run.settings.epochs
    return words if len(run.records) >= planned else f"{words} after {len(run.records)} epochs"
