"""Draws the accuracy of runs against the memory of their training steps.

    python experiments/tradeoff.py runs/

takes every run folder below `runs/`, plans its training step anew (it compiles it and runs
nothing) and prints and draws the test accuracy of its last epoch against the temporary memory of
that plan. Runs on CIFAR-10 or digits need no data for it; others must find theirs again, or are
left out.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import tyro
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparsemlp import InputError
from sparsemlp.configuration.program import build_program
from sparsemlp.configuration.settings import Settings
from sparsemlp.data import LabelledImages
from sparsemlp.exit_codes import exit_code
from sparsemlp.figures import check_picture, save_as
from sparsemlp.figures.legends import height, wrap
from sparsemlp.figures.style import COLORS, MARKERS, look, three_digits
from sparsemlp.files import make_folder
from sparsemlp.options import cli, open_default
from sparsemlp.studies.labels import Labels
from sparsemlp.studies.run_reader import read_run
from sparsemlp.studies.study_run import StudyRun
from sparsemlp.sweeps.rehearsal import outline_of
from sparsemlp.train.train_state import initial_state
from sparsemlp.train.training import train_step


class Point(NamedTuple):
    """A run: its test top-1, the bytes and the time of a training step, NaN if nobody knows it."""

    name: str
    top1: float
    peak_bytes: int
    step_ms: float


def planned_bytes(settings: Settings, dataset: LabelledImages) -> int:
    """Temporary memory of a run's training step, masked if the run masks, as XLA plans it."""
    program = build_program(settings, dataset)
    state = jax.eval_shape(lambda: initial_state(program))
    shape = (settings.batch_size, *dataset.image_shape)
    images = jax.ShapeDtypeStruct(shape, jnp.uint8)
    labels = jax.ShapeDtypeStruct(shape[:1], jnp.int32)

    masked = settings.mask_start_epoch < settings.epochs

    def step(state, images, labels):
        return train_step(program, state, images, labels, masked=masked)

    analysis = jax.jit(step, donate_argnums=0).lower(state, images, labels).compile()
    return analysis.memory_analysis().temp_size_in_bytes  # pyright: ignore[reportOptionalMemberAccess]


def plan_run(run: StudyRun, name: str) -> Point:
    """A run with an epoch on record; the time is the median of its last five epochs, a step."""
    settings = run.settings
    if settings is None or not run.records:
        raise InputError(f"it cannot be read: {run.reason or 'it has no settings'}")
    if len(run.records) < settings.epochs:
        name += f" ({len(run.records)} of {settings.epochs} epochs)"
    peak_bytes = planned_bytes(settings, outline_of(settings))
    return Point(name, run.last("test_top1"), peak_bytes, run.step_ms)


def name_runs(runs: Sequence[StudyRun]) -> list[str]:
    """What the runs are called: model, masking, whatever else sets them apart, and the seed."""
    labels = Labels(runs)
    seeds = {run.settings.seed for run in runs if run.settings is not None}
    return [
        (labels.label(run) if _has_string(run) else f"{run.model} {labels.label(run)}")
        + (f", seed {run.settings.seed}" if run.settings is not None and len(seeds) > 1 else "")
        for run in runs
    ]


def _has_string(run: StudyRun) -> bool:
    """Whether the words for its masking are a model string, which names the model."""
    return run.settings is not None and run.settings.config is not None


def _points(runs: Sequence[StudyRun]) -> Iterator[Point]:
    """The runs that can be planned; of the others it is said why not."""
    console = Console(stderr=True)
    with console.status("") as status:
        for index, (run, name) in enumerate(zip(runs, name_runs(runs), strict=True), 1):
            status.update(Text(f"compiling run {index} of {len(runs)}: {run.name}"))
            try:
                yield plan_run(run, name)
            except InputError as error:
                console.print(f"left out: {run.name}: {error}", markup=False, soft_wrap=True)


def tradeoff_figure(points: list[Point], title: str) -> Figure:
    """Test top-1 against the planned memory of a training step, a point a run."""
    labels = [
        wrap(
            f"{point.name}: {point.top1:.2%}, {three_digits(point.peak_bytes / 2**20)} MiB",
            width=8.0,
        )
        for point in points
    ]
    figure = Figure(figsize=(8, 4.5 + 1.4 * height(labels)), layout="constrained")
    axes = figure.subplots()
    for index, point in enumerate(points):
        axes.plot(
            point.peak_bytes / 2**20,
            100 * point.top1,
            MARKERS[index % len(MARKERS)],
            color=COLORS[index % len(COLORS)],
            label=labels[index],
        )
    axes.set(
        xlabel="planned temporary memory of a training step (MiB)",
        ylabel="test top-1, last epoch (%)",
        title=title,
    )
    axes.margins(0.1)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    figure.legend(frameon=False, loc="outside lower left", fontsize="small")
    return figure


def draw_tradeoff(
    folder: Annotated[Path, tyro.conf.Positional],
    out: Annotated[Path | None, open_default("PATH", "FOLDER/tradeoff.png")] = None,
) -> None:
    """Draws accuracy against memory for every run below a folder.

    Args:
      folder: folder of run folders.
      out: the picture, PNG, PDF or SVG by its ending.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: give a folder of runs")
    out = folder / "tradeoff.png" if out is None else out
    check_picture(out)
    make_folder(out.parent)
    runs = [read_run(p.parent, str(p.parent)) for p in sorted(folder.glob("**/metrics.jsonl"))]
    runs = [run for run in runs if run.records or run.status == "unreadable"]
    if not runs:
        raise InputError(f"no run with a finished epoch lies below {folder}: give a folder of runs")
    points = sorted(_points(runs), key=lambda p: -p.peak_bytes)
    if not points:
        raise InputError(f"no run below {folder} can be planned: the lines above say why")
    table = Table(title="accuracy against memory")
    for heading in ("run", "test top-1", "peak MiB", "of the largest", "ms a step"):
        table.add_column(heading, justify="left" if heading == "run" else "right")
    for point in points:
        share = point.peak_bytes / points[0].peak_bytes
        cells = (f"{point.top1:.2%}", three_digits(point.peak_bytes / 2**20), f"{share:.0%}")
        step = "" if math.isnan(point.step_ms) else f"{point.step_ms:.1f}"
        table.add_row(Text(point.name), *cells, step)
    Console().print(table)
    with look():
        figure = tradeoff_figure(
            points, f"last epoch, memory as XLA for {jax.default_backend()} plans it"
        )
    save_as(figure, out)
    print(out)


if __name__ == "__main__":
    sys.exit(exit_code(lambda: cli(draw_tradeoff, description=__doc__)))
