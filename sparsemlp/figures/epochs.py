"""Accuracy and loss over the epochs."""

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from sparsemlp.figures.dense_runs import named_dense_runs
from sparsemlp.figures.drawing import Chosen, Drawing, NothingToDrawError
from sparsemlp.figures.legends import columns_for, height, wrap, wrap_title
from sparsemlp.figures.seed_lines import MOST_LINES, backward_of, draw_seeds, looks, masked_at
from sparsemlp.figures.style import (
    BACKWARDS,
    MUTED,
    WIDTH,
    Look,
    epoch_axis,
    name_backward,
    percent_axis,
)
from sparsemlp.studies.labels import Labels
from sparsemlp.studies.seeds import Seeds, by_seed, percent
from sparsemlp.studies.study import Study
from sparsemlp.studies.study_run import StudyRun


def accuracy(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """Test top-1 over the epochs, a line for every setting."""
    groups = by_seed(study.trained)
    if not groups:
        raise NothingToDrawError("no run has a finished epoch")
    if len(groups) > MOST_LINES:
        raise NothingToDrawError(
            f"{len(groups)} settings are more lines than the {MOST_LINES} that can be told apart; "
            "accuracy_at_ratio has those of one ratio"
        )
    names = [wrap(f"{_name(study, group)}: {_last(group)}") for group in groups]
    models = ", ".join(sorted({run.model for run in study.trained}))
    datasets = ", ".join(sorted({run.dataset for run in study.trained}))
    title, more = wrap_title(f"{models} on {datasets}")
    figure = Figure(figsize=(WIDTH, 2.6 + more + height(names)))
    axes = figure.subplots()
    for group, look, name in zip(groups, looks(groups), names, strict=True):
        draw_seeds(axes, group, "test_top1", _without_crowd(group, look), name)
    percent_axis(axes, "test top-1")
    epoch_axis(axes)
    axes.set_title(title)
    figure.legend(loc="outside lower left", title="last epoch", alignment="left")
    yield Drawing("accuracy", figure, "Test top-1 after every epoch, a line a setting.")


def curves(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """Accuracy and loss of the chosen block and ratio, a line per backward pass."""
    groups = by_seed(masked_at(study, chosen.ratio, chosen.block))
    if not groups:
        raise NothingToDrawError(f"no run of {chosen.block} at {chosen.ratio:g} has an epoch")
    groups.sort(key=lambda group: list(BACKWARDS).index(backward_of(group)))
    runs = [group.first for group in groups]
    named = list(zip(_names_in_block(runs), groups, strict=True))
    named += named_dense_runs(study, runs).items()
    groups = [group for _, group in named]
    if len(groups) > MOST_LINES:
        raise NothingToDrawError(
            f"{len(groups)} settings of {chosen.block} at {chosen.ratio:g}, and dense ones, are "
            f"more lines than the {MOST_LINES} that can be told apart"
        )
    names = [f"{name}{_behind(group)}: {_last(group)}" for name, group in named]
    columns = columns_for(names, most=2)
    names = [wrap(name, columns) for name in names]
    figure = Figure(figsize=(WIDTH, 2.8 + height(names, columns)))
    top1, loss = figure.subplots(1, 2)
    for group, look, name in zip(groups, looks(groups), names, strict=True):
        plain = _without_crowd(group, look)
        draw_seeds(top1, group, "test_top1", plain, name)
        draw_seeds(loss, group, "loss", plain, None)
    percent_axis(top1, "test top-1")
    loss.set_ylabel("training loss (nats)")
    losses = np.concatenate([run.column("loss") for group in groups for run in group.runs])
    finite = losses[np.isfinite(losses)]
    if not finite.size:
        loss.text(0.5, 0.5, "no finite loss", transform=loss.transAxes, ha="center", color=MUTED)
    if np.max(finite, initial=0.0) > 20:
        loss.set_yscale("log")
        loss.yaxis.set_major_formatter(_as_power)
        loss.yaxis.set_minor_formatter(NullFormatter())
    for axes in (top1, loss):
        epoch_axis(axes)
    figure.suptitle(f"{chosen.block} at ratio {chosen.ratio:g}")
    figure.legend(
        loc="outside lower left",
        title="top-1 of the last epoch",
        alignment="left",
        ncols=columns,
    )
    yield Drawing(
        "curves",
        figure,
        f"Test top-1 and training loss over the epochs of {chosen.block} at ratio "
        f"{chosen.ratio:g}; bands span the seeds.",
    )


def _as_power(value: float | int, position: float | int | None = None) -> str:
    return f"{value:.0e}" if value > 999 else f"{value:g}"


def _without_crowd(group: Seeds, look: Look) -> Look:
    """A look without markers for a line of many epochs."""
    return look._replace(marker="") if len(group.first.records) >= 40 else look


def _names_in_block(runs: list[StudyRun]) -> list[str]:
    """Names of masked runs that share block and ratio."""
    labels = Labels(runs)
    words = ((run.masking, labels.variant(run)) for run in runs)
    return [
        name_backward(masking.backward if masking else "") + (f", {variant}" if variant else "")
        for masking, variant in words
    ]


def _name(study: Study, group: Seeds) -> str:
    run = group.first
    seeds = f", {group.count}" if group.count else ""
    if not seeds and len({other.settings.seed for other in study.trained if other.settings}) > 1:
        seeds = f", seed {run.settings.seed}" if run.settings is not None else ""
    return study.label(run) + seeds


def _behind(group: Seeds) -> str:
    return f", {group.count}" if group.n_behind else ""


def _last(group: Seeds) -> str:
    run = group.first
    words = percent(*group.top1())
    planned = 0 if run.settings is None else run.settings.epochs
    return words if len(run.records) >= planned else f"{words} after {len(run.records)} epochs"
