"""Pictures of one run, drawn from the files of its folder and nothing else.

Matplotlib is imported by the functions that draw: a run needs it at its end alone, and its import
would delay the first step of every run.
"""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsemlp.files import write_whole
from sparsemlp.runs.history import History
from sparsemlp.runs.mask_activity import read_mask_activity
from sparsemlp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TITLE, _SMALL_TITLE = 110, 13
"""Characters of a line of the curves' title, and for each inch of that of the masks."""
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#666666"


def draw(folder: RunFolder, title: str) -> None:
    """Draws `curves.png`, and `masks.png` if a masked step was made.

    Args:
      folder: the run.
      title: model, masking and data set, for the head of each picture.

    Raises:
      SaveError: the disk is full or refuses the write.
      InputError: `mask_activity.npz` is damaged.
    """
    records = History(folder.metrics).read()
    if records:
        _save(_curves(records, title), folder.curves)
    if folder.mask_activity.is_file():
        activity = read_mask_activity(folder.mask_activity)
        if shares := activity.shares():
            _save(_masks(shares, activity.masked_steps, title), folder.masks)


def _save(figure: "Figure", path: Path) -> None:
    write_whole(path, lambda file: figure.savefig(file, format="png", dpi=120))


def _curves(records: list[dict[str, Any]], title: str) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns = {key: [record[key] for record in records] for key in records[0]}
    # Of a dense run there is nothing to say of masks.
    is_masked = min(columns["density"]) < 1
    figure = Figure(figsize=(11, 7) if is_masked else (13, 4), layout="constrained")
    figure.suptitle(textwrap.fill(title, _TITLE), parse_math=False)
    all_axes = figure.subplots(*((2, 2) if is_masked else (1, 3)), sharex=True).flatten().tolist()
    accuracy, loss, *masks, rate = all_axes
    epochs = columns["epoch"]
    marker = "." if len(epochs) < 30 else None

    def line(axes: "Axes", key: str, label: str, color: str, style: str = "-") -> None:
        axes.plot(epochs, columns[key], style, color=color, label=label, marker=marker)

    line(accuracy, "test_top1", "test top-1", _BLUE)
    line(accuracy, "test_top5", "test top-5", _GREEN)
    line(accuracy, "train_top1", "training top-1 (augmented images)", _ORANGE, "--")
    accuracy.set(ylabel="accuracy", ylim=(0, 1))
    last = records[-1]["test_top1"]
    accuracy.annotate(
        f"{last:.2%}",
        (epochs[-1], last),
        xytext=(-4, 6),
        textcoords="offset points",
        ha="right",
        color=_BLUE,
    )
    line(loss, "loss", "training loss", _ORANGE)
    if "validation_loss" in columns:
        line(loss, "validation_loss", "loss of the held-out images", _BLUE)
    loss.set(ylabel="cross entropy (nats)")
    for axes in masks:
        line(axes, "density", "weights kept", _BLUE)
        line(axes, "changed_blocks", "blocks changed in the epoch", _ORANGE)
        axes.set(ylabel="share", ylim=(-0.02, 1.02))
    learning_rates = rate
    if is_masked:
        line(rate, "dropped_norm", "norm of the dropped weights", _GREY)
        rate.set(ylabel="Frobenius norm", ylim=(0, None))
        learning_rates = rate.twinx()
    line(learning_rates, "learning_rate", "learning rate", _GREEN, "--")
    learning_rates.set(ylabel="learning rate", ylim=(0, None))
    if is_masked:
        # Above: "best" does not see the lines of the other axis.
        lines, place = [*rate.lines, *learning_rates.lines], {"loc": "lower center"}
        rate.legend(handles=lines, frameon=False, ncols=2, bbox_to_anchor=(0.5, 1), **place)
    rate.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for axes in (accuracy, loss, *masks):
        axes.legend(frameon=False)
    for axes in all_axes:
        axes.grid(alpha=0.25)
    for axes in (*masks, rate) if is_masked else all_axes:
        axes.set_xlabel("epoch")
    return figure


def _masks(shares: dict[str, np.ndarray], n_steps: int, title: str) -> "Figure":
    """Heat maps of `[out, in]` orientation: a row of maps a block, a column a layer kind.

    Layers that are in no block have a row each.
    """
    from matplotlib.figure import Figure

    maps: dict[tuple[str, str], np.ndarray] = {}
    for path, share in shares.items():
        block, _, kind = path.removesuffix("/kernel").partition("/")
        maps[block, kind] = share
    blocks = list(dict.fromkeys(block for block, _ in maps))
    kinds = sorted({kind for _, kind in maps}, key=lambda kind: (kind != "XPatch", kind))
    width = 1.5 + 3 * len(kinds)
    title = textwrap.fill(title, int(_SMALL_TITLE * width))
    lines = 0.15 * title.count("\n")
    figure = Figure(figsize=(width, 1 + lines + 2 * len(blocks)), layout="constrained")
    figure.suptitle(
        f"{title}\nshare of {n_steps:,} masked steps that kept the block",
        fontsize=9,
        parse_math=False,
    )
    grid = figure.subplots(len(blocks), len(kinds), squeeze=False)
    image = None
    for row, block in zip(grid, blocks, strict=True):
        for axes, kind in zip(row, kinds, strict=True):
            axes.set(xticks=[], yticks=[])
            if (block, kind) not in maps:
                axes.set_axis_off()
                continue
            image = axes.imshow(
                maps[block, kind],
                vmin=0,
                vmax=1,
                cmap="cividis",
                interpolation="nearest",
            )
            axes.set_aspect("auto")
            axes.set_title(f"{block} {kind}".rstrip(), fontsize=8)
            axes.set_xlabel("inputs", fontsize=7)
            axes.set_ylabel("outputs", fontsize=7)
    if image is not None:
        figure.colorbar(image, ax=grid, shrink=0.6)
    return figure
