"""The runs of a study as a table: the same numbers for a page, a CSV and a JSON file."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparsemlp import files
from sparsemlp.files import Record, encode, write_whole
from sparsemlp.studies.run_costs import run_costs
from sparsemlp.studies.study import Study
from sparsemlp.studies.study_run import StudyRun

Value = str | int | float | None
"""A cell; None where nothing is known."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table of runs.

    Attributes:
      key: its name in `runs.csv` and `runs.json`.
      heading: its name on the page.
      meaning: what it says, with the unit.
      show: writes a number of it for a reader.
      shown: whether it is on the page.
    """

    key: str
    heading: str
    meaning: str
    show: Callable[[Any], str] = str
    shown: bool = True


def _percent(value: float) -> str:
    return f"{value:.2%}"


def _short(value: float) -> str:
    return f"{value:.4g}"


def digits(value: float, decimals: int) -> str:
    """A number with so many decimals, or with three digits where that would leave fewer."""
    enough = value == 0 or abs(value) >= 10 ** (2 - decimals)
    return f"{value:.{decimals}f}" if enough else f"{value:.3g}"


COLUMNS = (
    Column("name", "run", "folder of the run"),
    Column("status", "status", "finished, unfinished, failed, missing or unreadable"),
    Column("reason", "reason", "why it is not finished", shown=False),
    Column("model", "model", "name of the model", shown=False),
    Column("masking", "masking", "rules of the run", shown=False),
    Column("block", "block", "rows over outputs x columns over inputs"),
    Column("ratio", "ratio", "share of blocks that are dropped", lambda v: f"{v:g}"),
    Column("backward", "backward", "backward pass of the masked layers"),
    Column("differs", "other options", "options in which the runs differ otherwise"),
    Column("seed", "seed", "seed of everything random"),
    Column("epochs", "planned epochs", "epochs that were asked for", shown=False),
    Column("epochs_done", "epochs", "epochs on record"),
    Column("test_top1", "top-1", "test top-1 of the last epoch", _percent),
    Column("test_top5", "top-5", "test top-5 of the last epoch", _percent),
    Column("best_test_top1", "best top-1", "best test top-1, at the highest ratio", _percent),
    Column("train_top1", "training top-1", "on augmented, mixed images", _percent, shown=False),
    Column("loss", "loss", "training loss of the last epoch, nats", _short),
    Column("density", "density", "share of the masked layers' weights kept", lambda v: f"{v:.3f}"),
    Column("changed_blocks", "changed", "blocks changed in the last epoch", _percent, shown=False),
    Column("dropped_norm", "dropped norm", "norm of the dropped weights", _short, shown=False),
    Column("step_ms", "ms/step", "measured: median of the last epochs, ms", lambda v: digits(v, 2)),
    Column("seconds", "minutes", "measured: in the training programs", lambda v: digits(v / 60, 1)),
    Column("parameters", "parameters", "parameters of the model", shown=False),
    Column(
        "loaded_elements",
        "loaded weights",
        "theoretical: weights that all forward passes load, billions",
        lambda v: digits(v / 1e9, 2),
    ),
    Column(
        "thesis_movement_gb",
        "GB (thesis)",
        "theoretical: GB of 2^30 bytes that the forward passes move, as the thesis counts them",
        lambda v: digits(v, 1),
    ),
    Column(
        "movement_gb",
        "GB (all tokens)",
        "theoretical: the same with the activations of all tokens",
        lambda v: digits(v, 1),
        shown=False,
    ),
    Column(
        "thesis_flops",
        "GFLOPs (thesis)",
        "theoretical: forward FLOPs of one image an epoch, as the thesis counts them",
        lambda v: digits(v / 1e9, 2),
        shown=False,
    ),
    Column(
        "training_flops",
        "PFLOPs",
        "theoretical: FLOPs of all images, forward and backward, with the kept blocks of weights; "
        "other rules are not counted",
        lambda v: digits(v / 1e15, 3),
    ),
    Column("dataset", "data set", "as the run says it", shown=False),
    Column("device", "device", "what computed it", shown=False),
    Column("jax", "JAX", "version of JAX", shown=False),
    Column("commit", "commit", "of the checkout, + if it was changed", shown=False),
)

Row = dict[str, Value]
"""A run by the keys of `COLUMNS`."""


def rows(study: Study) -> list[Row]:
    """A row a run, in the order of the study, numbers unrounded."""
    return [_row(study, run) for run in study.runs]


def _row(study: Study, run: StudyRun) -> Row:
    settings, costs, versions = run.settings, run_costs(run), run.environment.get("versions")
    row: Row = {column.key: None for column in COLUMNS}
    row |= {"name": run.name, "status": run.status, "reason": run.reason or None}
    if settings is not None:
        row |= {
            "model": run.model,
            "masking": run.label,
            "block": run.block,
            "ratio": run.ratio,
            "backward": run.backward,
            "differs": study.other_options(run) or None,
            "seed": settings.seed,
            "epochs": settings.epochs,
        }
    if run.records:
        row["epochs_done"] = int(run.records[-1]["epoch"])
        accuracies = ("test_top1", "test_top5", "train_top1")
        for key in (*accuracies, "loss", "density", "changed_blocks", "dropped_norm"):
            row[key] = _number(run.records[-1].get(key))
        row["step_ms"] = None if math.isnan(run.step_ms) else run.step_ms
        seconds = run.column("seconds")
        row["seconds"] = None if math.isnan(sum(seconds)) else float(sum(seconds))
    if run.summary:
        row |= {key: _number(run.summary.get(key)) for key in ("best_test_top1", "parameters")}
    if costs is not None:
        row |= dataclasses.asdict(costs)
    return row | {
        "dataset": run.dataset or None,
        "device": run.device or None,
        "jax": versions.get("jax") if isinstance(versions, dict) else None,
        "commit": run.environment.get("commit"),
    }


def _number(value: Any) -> float | int | None:
    """A JSON number as it is; None for anything else."""
    return value if isinstance(value, int | float) else None


def show(column: Column, value: Value) -> str:
    """A cell as a reader sees it: empty where nothing is known."""
    if value is None:
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite" if value > 0 else "-infinite"
    return value if isinstance(value, str) else column.show(value)


def plain(value: Value) -> str:
    """A cell as a CSV file has it: unrounded, empty where nothing is known."""
    if value is None:
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return repr(value) if isinstance(value, float) else str(value)


def write_csv(path: Path, table: list[Row]) -> None:
    """Writes a line a run.

    Raises:
      SaveError: the disk is full or refuses the write.
    """
    keys = [column.key for column in COLUMNS]
    files.write_csv(path, keys, ([plain(row[key]) for key in keys] for row in table))


def write_json(path: Path, table: list[Row], more: Record) -> None:
    """Writes the same rows, what the columns mean, and more keys beside them.

    Raises:
      SaveError: as `write_csv`.
    """
    columns = {column.key: column.meaning for column in COLUMNS}
    data = encode({"version": 1, "columns": columns, "runs": table} | more, indent=1) + b"\n"
    write_whole(path, lambda file: file.write(data))
