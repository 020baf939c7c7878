"""A sweep as its file describes it: every run, checked, and how it is to be launched."""

import dataclasses
from pathlib import Path
from typing import Literal, get_args

from sparsemlp.configuration.config import Config
from sparsemlp.errors import InputError
from sparsemlp.sweeps.grid_check import check_points, config_of, values_of
from sparsemlp.sweeps.grid_file import GridFile, Section, parse_grid_file
from sparsemlp.sweeps.marked_yaml import Problems
from sparsemlp.sweeps.slurm_options import SlurmOptions, parse_sbatch

Launcher = Literal["local", "slurm"]


@dataclasses.dataclass(frozen=True)
class GridRun:
    """One run of a grid: what it chooses, and which of its options the grid lists."""

    config: Config
    swept: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Grid:
    """A grid file that was read and checked.

    Attributes:
      path: the file.
      text: what stood in it.
      runs: its runs, in the order of the file.
      launcher: who is to run them, None if the file leaves it open.
      prefix: name of the jobs on a cluster, None if the file leaves it open.
      slurm: what each job asks SLURM for.
    """

    path: Path
    text: str
    runs: list[GridRun]
    launcher: Launcher | None
    prefix: str | None
    slurm: SlurmOptions


def read_grid(path: Path, chosen: Launcher | None = None) -> Grid:
    """Reads a grid file; `sparsemlp.sweeps.grid_file` shows its form.

    Nothing is downloaded or trained; a data set that is an `.npz` file is read.

    Args:
      path: the file.
      chosen: who is to run it, in the place of what the file says.

    Raises:
      InputError: the file cannot be read, is no YAML, or has problems, all of which the message
        lists with their lines.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise InputError(f"the grid file {path} cannot be read: {reason}") from error
    problems = Problems(path)
    file = parse_grid_file(path, text, problems)
    launcher, prefix = _meta(file.meta, problems)
    slurm = parse_sbatch(file.sbatch, problems)
    is_remote = (chosen or launcher) == "slurm"
    check_points(file.points, file.stated, problems, is_remote=is_remote)
    problems.require_none()
    return Grid(path, text, _runs(file), launcher, prefix, slurm)


def _runs(file: GridFile) -> list[GridRun]:
    return [GridRun(config_of(values_of(point, file.stated)), point.swept) for point in file.points]


def _meta(section: Section, problems: Problems) -> tuple[Launcher | None, str | None]:
    for key, known in (("run", get_args(Launcher)), ("mode", ("grid",))):
        if key in section and section[key].text not in known:
            problems.add(
                section[key].line,
                f"meta.{key} is {section[key].text!r}: choose {' or '.join(known)}",
            )
    prefix = section["prefix"].text if "prefix" in section else None
    run = section["run"].text if "run" in section else None
    return next((each for each in get_args(Launcher) if each == run), None), prefix
