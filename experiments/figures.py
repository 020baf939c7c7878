"""Draws pictures over several runs, from their folders and nothing else.

    python experiments/figures.py runs/ --out accuracy.png

draws the test accuracy over the epochs of every run folder below `runs/`.
"""

import sys
from pathlib import Path
from typing import Annotated

import tyro
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparsemlp import InputError
from sparsemlp.config import read_config
from sparsemlp.errors import SaveError
from sparsemlp.files import Record, write_whole
from sparsemlp.history import History
from sparsemlp.recipes import recipe
from sparsemlp.run_folder import RunFolder
from sparsemlp.settings import describe_masking

COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""That the colour-blind tell apart (Okabe and Ito)."""
_DASHES = ("-", "--", "-.", ":")


def accuracy_figure(runs: list[tuple[str, list[Record]]], title: str) -> Figure:
    """Test top-1 over the epochs, a line a run.

    Args:
      runs: the name to show and the records of each run.
      title: what was trained on what.
    """
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for index, (name, records) in enumerate(runs):
        last = records[-1]["test_top1"]
        axes.plot(
            [record["epoch"] for record in records],
            [100 * record["test_top1"] for record in records],
            _DASHES[index // len(COLORS) % len(_DASHES)],
            color=COLORS[index % len(COLORS)],
            marker="." if len(records) < 40 else None,
            label=f"{name}: {last:.2%}",
        )
    axes.set(xlabel="epoch", ylabel="test top-1 (%)", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, title="last epoch")
    return figure


def draw_accuracy(
    folder: Annotated[Path, tyro.conf.Positional],
    out: Path = Path("accuracy.png"),
) -> None:
    """Draws the test accuracy over the epochs of every run below a folder.

    Args:
      folder: folder of run folders.
      out: the picture, PNG, PDF or SVG by its ending.
    """
    runs: list[tuple[str, list[Record]]] = []
    models: set[str] = set()
    datasets: set[str] = set()
    for path in sorted(folder.glob("**/metrics.jsonl")):
        run = RunFolder(path.parent)
        run.check_resumable()
        config = read_config(run.config)
        records = History(path).read()
        if records:
            runs.append((f"{describe_masking(config)}, seed {config.seed}", records))
            models.add(recipe(config.model).title)
            datasets.add(records[-1]["dataset"])
    if not runs:
        raise InputError(f"no run with a finished epoch lies below {folder}: give a folder of runs")
    title = f"{', '.join(sorted(models))} on {', '.join(sorted(datasets))}"
    figure = accuracy_figure(runs, title)
    save_figure(figure, out)


def check_picture(out: Path) -> str:
    """The format of a picture by the ending of its file.

    Raises:
      InputError: the ending is that of no picture.
    """
    kind = out.suffix.removeprefix(".").lower()
    if kind not in ("png", "pdf", "svg"):
        raise InputError(f"--out={out} is no picture: end it in .png, .pdf or .svg")
    return kind


def save_figure(figure: Figure, out: Path) -> None:
    """Writes a figure, whole or not at all."""
    kind = check_picture(out)
    write_whole(out, lambda file: figure.savefig(file, format=kind, dpi=120))


if __name__ == "__main__":
    try:
        tyro.cli(draw_accuracy, description=__doc__)
    except (InputError, SaveError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
