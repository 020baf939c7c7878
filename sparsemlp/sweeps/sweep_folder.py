"""The folder of a sweep: what lies where, which runs it has, and how far each is.

sweep.json     the grid file's name and text; name and configuration of every run, and what is to be
               told of how its data were found
runs/NAME/     an ordinary run folder; `summary.json` in it says that the run is finished,
               `failure.json` that it failed and why
slurm/         scripts and output of the jobs on a cluster, if it ran there
"""

import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Literal

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.config_file import from_json, to_json
from sparsemlp.errors import InputError
from sparsemlp.files import UNFINISHED, write_json
from sparsemlp.runs.lock import exclusive
from sparsemlp.runs.run_folder import RunFolder

VERSION = 1
"""Of `sweep.json`; another one is refused."""

_OWN = ("sweep.json", "runs", "slurm", ".lock")

State = Literal["finished", "failed", "begun", "new"]


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Attributes:
      name: of the run and of its folder.
      config: what to train.
      notice: what a program must show the user of how its data were found, or None.
    """

    name: str
    config: Config
    notice: str | None = None


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What `sweep.json` says: name and text of the grid file, and its runs in their order."""

    grid: str
    text: str
    runs: list[SweepRun]


class SweepFolder:
    """Paths and records of a sweep.

    Args:
      path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sweep = path / "sweep.json"
        self.runs = path / "runs"
        self.slurm = path / "slurm"

    def run(self, name: str) -> RunFolder:
        """The folder of one run."""
        return RunFolder(self.runs / name)

    def create(self) -> None:
        """Makes the folder and its parents; one that a sweep began in is as good as new.

        Raises:
          InputError: something else is in it, or it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the folder {self.path} cannot be made: {error.strerror}; choose another with "
                "--out"
            ) from error
        self.check()

    def check(self) -> None:
        """Looks whether a sweep may work here; a folder that can be made is fine.

        Raises:
          InputError: something else is in it, it is no folder, or none can be made.
        """
        try:
            others = sorted(
                path.name
                for path in self.path.iterdir()
                if path.name not in _OWN and path.suffix != UNFINISHED
            )
        except FileNotFoundError:
            above = next(path for path in self.path.absolute().parents if path.exists())
            if not os.access(above, os.W_OK | os.X_OK):
                raise InputError(
                    f"the folder {self.path} cannot be made: you may not write in {above}; "
                    "choose another with --out"
                ) from None
            return
        except OSError as error:
            raise InputError(
                f"{self.path} is no folder for a sweep: {error.strerror}; choose another with --out"
            ) from error
        if others and not self.sweep.exists():
            raise InputError(
                f"{self.path} is not empty and no sweep, it holds {others[0]}: choose another "
                "folder with --out"
            )

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keeps every other launcher out.

        Raises:
          InputError: another sweep runs here, or the folder cannot be written.
        """
        return exclusive(
            self.path,
            f"another sweep is running in {self.path}: wait for it, stop it, or choose another "
            "folder with --out",
        )

    def read(self) -> Sweep | None:
        """The sweep of the folder, None if none has begun.

        Raises:
          InputError: the file cannot be read, or is of another version.
        """
        try:
            if not self.sweep.exists():
                return None
            record = json.loads(self.sweep.read_text())
            version = record["version"]
            if version != VERSION:
                raise InputError(
                    f"{self.sweep} is of version {version}, this program reads {VERSION}: go on "
                    "with the program that began it, or choose another folder with --out"
                )
            return Sweep(record["grid"], record["text"], [self._run(r) for r in record["runs"]])
        except InputError:
            raise
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{self.sweep} cannot be read as a sweep ({type(error).__name__}: {error}): "
                "restore the file, or move it away: a grid file makes it anew, and goes on with "
                "the runs that are there"
            ) from error

    def write(self, sweep: Sweep) -> None:
        """Writes `sweep.json` as a whole.

        Raises:
          SaveError: the disk is full or refuses the write.
        """
        runs = [
            {"name": r.name, "config": json.loads(to_json(r.config)), "notice": r.notice}
            for r in sweep.runs
        ]
        write_json(
            self.sweep,
            {"version": VERSION, "grid": sweep.grid, "text": sweep.text, "runs": runs},
        )

    def state(self, name: str) -> State:
        """How far a run is, by the files in its folder."""
        folder = self.run(name)
        if folder.is_finished():
            return "finished"
        if folder.failure.exists():
            return "failed"
        return "begun" if folder.config.exists() else "new"

    def _run(self, record: Any) -> SweepRun:
        name, config = record["name"], record["config"]
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name:
            raise ValueError(f"{name!r} is no name of a run")
        # An older version wrote no notice.
        return SweepRun(name, from_json(json.dumps(config), self.sweep), record.get("notice"))
