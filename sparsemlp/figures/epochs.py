"""What happens over the epochs: accuracy, loss, and how fast the masks change."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator

from sparsemlp.blocks import parse_block
from sparsemlp.figures.dense_runs import dense_runs
from sparsemlp.figures.drawing import Chosen, Drawing, NothingToDrawError
from sparsemlp.figures.style import (
    BACKWARDS,
    COLORS,
    DASHES,
    DENSE_MODEL,
    FAMILIES,
    WIDTH,
    Look,
    as_percent,
    epoch_axis,
    family,
    name_backward,
    order_backwards,
    percent_axis,
    shades,
    sort_blocks,
)
from sparsemlp.seeds import Seeds, by_seed, percent
from sparsemlp.study import Study
from sparsemlp.study_run import StudyRun

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
        _lines(axes, group, "test_top1", look, f"{_name(study, group)}: {_last(group)}")
    percent_axis(axes, "test top-1")
    epoch_axis(axes)
    models = ", ".join(sorted({run.model for run in study.trained}))
    axes.set_title(f"{models} on {', '.join(sorted({run.dataset for run in study.trained}))}")
    figure.legend(loc="outside lower left", title="last epoch", alignment="left")
    yield Drawing("accuracy", figure, "Test top-1 after every epoch, a line a setting.")


def _own_looks(groups: Sequence[Seeds]) -> list[Look]:
    """Those of the backward passes where each line has its own; else one colour after another."""
    known = BACKWARDS | {"dense model": DENSE_MODEL}
    kinds = ["dense model" if g.first.is_dense else _backward(g) for g in groups]
    if len(set(kinds)) == len(kinds) and all(g.first.is_dense or g.first.masking for g in groups):
        return [known[kind] for kind in kinds]
    colors, dashes = len(COLORS), len(DASHES)
    return [Look(COLORS[i % colors], DASHES[i // colors % dashes], ".") for i in range(len(groups))]


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
        raise NothingToDrawError("no masked run records how many blocks changed")
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


def curves(study: Study, chosen: Chosen) -> Iterator[Drawing]:
    """Accuracy and loss of the chosen block and ratio, a line per backward pass."""
    groups = by_seed(_at(study, chosen.ratio, chosen.block))
    if not groups:
        raise NothingToDrawError(f"no run of {chosen.block} at {chosen.ratio:g} has an epoch")
    dense = dense_runs(study, [group.first for group in groups])
    figure = Figure(figsize=(WIDTH, 3.0 + 0.08 * len(groups)))
    top1, loss = figure.subplots(1, 2)
    used: dict[str, int] = {}
    groups.sort(key=lambda group: list(BACKWARDS).index(_backward(group)))
    named = [(group, *_look(study, group, used)) for group in groups]
    named += [(dense, DENSE_MODEL, "dense model")] if dense is not None else []
    for group, look, name in named:
        plain = look._replace(marker="" if len(group.first.records) >= 40 else look.marker)
        _lines(top1, group, "test_top1", plain, f"{name}: {_last(group)}")
        _lines(loss, group, "loss", plain, None)
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


def _at(study: Study, ratio: float, block: str | None = None) -> list[StudyRun]:
    return [
        run
        for run in study.trained
        if run.masking is not None
        and run.masking.ratio == ratio
        and (block is None or run.block == block)
    ]


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
    groups = by_seed(_at(study, chosen.ratio))
    if not groups:
        raise NothingToDrawError(f"no masked run at ratio {chosen.ratio:g} has an epoch")
    backwards = order_backwards({_backward(group) for group in groups})
    variants = sorted({study.variant(group.first) for group in groups})
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
    dense = None if logarithmic else dense_runs(study, [group.first for group in groups])
    for row, backward in enumerate(backwards):
        for column, kind in enumerate(families):
            axes = grid[row, column]
            chosen_groups = [
                group
                for group in groups
                if _backward(group) == backward and family(group.first.block or "") == kind
            ]
            _blocks(axes, study, chosen_groups, variants, values)
            if dense is not None:
                _lines(axes, dense, "test_top1", DENSE_MODEL._replace(marker=""), None)
            if logarithmic:
                axes.set_yscale("symlog", linthresh=1e-3, linscale=0.3)
                axes.set_yticks([0, 1e-3, 1e-2, 1e-1, 1])
                axes.yaxis.set_minor_locator(NullLocator())
                axes.set_ylim(0, 1.1)
            axes.yaxis.set_major_formatter(as_percent)
            if row == 0:
                axes.set_title(f"blocks {FAMILIES[kind]}")
            if column == 0:
                axes.set_ylabel(f"{name_backward(backward)}\n{label} (%)")
            if row == len(backwards) - 1:
                epoch_axis(axes)
    for column in range(len(families)):
        handles = {
            line.get_label(): line
            for axes in grid[:, column]
            for line in axes.lines
            if not str(line.get_label()).startswith("_")
        }
        labels = sorted(handles, key=lambda text: parse_block(str(text)))
        grid[0, column].legend(
            [handles[text] for text in labels], labels, ncols=2, loc="best", handlelength=1.6
        )
    if len(variants) > 1:
        figure.legend(
            [Line2D([], [], color="black", linestyle=DASHES[i % 4]) for i in range(len(variants))],
            [variant or "no other option" for variant in variants],
            loc="outside lower left",
            handlelength=3,
        )
    dotted = ", dotted: dense model" if dense is not None else ""
    figure.suptitle(f"ratio {chosen.ratio:g}{dotted}")
    return Drawing(name, figure, caption)


def _blocks(
    axes: Axes,
    study: Study,
    groups: Sequence[Seeds],
    variants: list[str],
    values: Callable[[StudyRun], np.ndarray],
) -> None:
    """A line a block; other options have a dash of their own."""
    blocks = sort_blocks({group.first.block or "" for group in groups})
    colors = dict(zip(blocks, shades(len(blocks)), strict=True))
    for group in groups:
        block = group.first.block or ""
        number = variants.index(study.variant(group.first))
        epochs, mean, _, _ = _over_seeds(group, values)
        axes.plot(
            epochs,
            mean,
            DASHES[number % len(DASHES)],
            color=colors[block],
            linewidth=1.1,
            marker="." if len(epochs) < 3 else None,
            label=block,
        )


def _lines(axes: Axes, group: Seeds, key: str, look: Look, label: str | None) -> None:
    """The mean over the seeds, and a band from the lowest to the highest of them."""
    epochs, mean, low, high = _over_seeds(group, lambda run: run.column(key))
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


def _over_seeds(
    group: Seeds, values: Callable[[StudyRun], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Epochs that all seeds have, and mean, least and largest value of each."""
    length = min(len(run.records) for run in group.runs)
    found = np.array([values(run)[:length] for run in group.runs])
    epochs = group.first.column("epoch")[:length]
    finite = np.where(np.isfinite(found), found, np.nan)
    return epochs, finite.mean(axis=0), finite.min(axis=0), finite.max(axis=0)


def _backward(group: Seeds) -> str:
    return "masked" if group.first.masking is None else group.first.masking.backward


def _look(study: Study, group: Seeds, used: dict[str, int]) -> tuple[Look, str]:
    """The look and the name of a group; a further one of the same backward has its own colour."""
    backward = _backward(group)
    number = used[backward] = used.get(backward, -1) + 1
    look = BACKWARDS[backward]
    if number:
        look = look._replace(color=COLORS[(3 + number) % len(COLORS)], dash=DASHES[number % 4])
    variant = study.variant(group.first)
    return look, name_backward(backward) + (f", {variant}" if variant else "")


def _name(study: Study, group: Seeds) -> str:
    run = group.first
    seeds = f", {len(group.runs)} seeds" if len(group.runs) > 1 else ""
    if not seeds and len({other.settings.seed for other in study.trained if other.settings}) > 1:
        seeds = f", seed {run.settings.seed}" if run.settings is not None else ""
    return study.label(run) + seeds


def _last(group: Seeds) -> str:
    run = group.first
    words = percent(*group.top1())
    planned = 0 if run.settings is None else run.settings.epochs
    return words if len(run.records) >= planned else f"{words} after {len(run.records)} epochs"
