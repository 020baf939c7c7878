"""A study: a folder of runs, and the grid that a sweep planned them by, where there is one.

A sweep's folder has `sweep.json`; without it all run folders at any depth are the study, and
nothing is known to be missing.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any

from sparsemlp.configuration.config_file import from_json
from sparsemlp.configuration.settings import Settings
from sparsemlp.errors import InputError
from sparsemlp.files import Record, encode
from sparsemlp.runs.run_folder import RunFolder
from sparsemlp.studies.labels import Labels, differing_options
from sparsemlp.studies.run_reader import read_run, resolve_for
from sparsemlp.studies.study_run import StudyRun
from sparsemlp.sweeps.sweep_folder import VERSION

_MARKS = frozenset({"config.json", "metrics.jsonl", "summary.json", "failure.json"})
"""A folder with one of these is a run's."""


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """The runs of a folder.

    Attributes:
      path: the folder.
      runs: by name; with a grid in its order, those that it does not know behind.
      grid_name: name of the grid file; None without one.
      grid_text: its text.
      unplanned: names of runs that lie in the folder and not in the grid.
    """

    path: Path
    runs: tuple[StudyRun, ...]
    grid_name: str | None = None
    grid_text: str = ""
    unplanned: tuple[str, ...] = ()

    @functools.cached_property
    def trained(self) -> tuple[StudyRun, ...]:
        """Runs with at least one epoch on record."""
        return tuple(run for run in self.runs if run.records and run.settings is not None)

    @functools.cached_property
    def finished(self) -> tuple[StudyRun, ...]:
        """Runs that came to their end."""
        return tuple(run for run in self.runs if run.status == "finished")

    @functools.cached_property
    def differing(self) -> tuple[str, ...]:
        """Names of the options that are not the same in all runs."""
        return differing_options(self.runs)

    @functools.cached_property
    def _labels(self) -> Labels:
        return Labels(self.runs)

    def unreadable(self) -> dict[str, list[str]]:
        """Why runs could not be read, and which ones."""
        found: dict[str, list[str]] = {}
        for run in self.runs:
            if run.status == "unreadable":
                found.setdefault(run.reason, []).append(run.name)
        return found

    def left_out(self) -> list[str]:
        """A line for each reason why runs could not be read."""
        return [
            f"left out {len(names)} ({shorten(', '.join(names), 80)}): {reason}"
            for reason, names in self.unreadable().items()
        ]

    def variant(self, run: StudyRun) -> str:
        """What sets a masked run apart beside block, ratio, backward pass and seed, in words."""
        return self._labels.variant(run)

    def label(self, run: StudyRun) -> str:
        """The masking of a run in words, and what else sets it apart but its seed."""
        return self._labels.label(run)

    def other_options(self, run: StudyRun) -> str:
        """The options that differ between runs, beside block, ratio, backward pass and seed."""
        return self._labels.other_options(run)


def read_study(path: Path) -> Study:
    """Reads a folder of runs, at any depth.

    Raises:
      InputError: there is no such folder, no run in it, or a `sweep.json` that cannot be read.
    """
    if not path.is_dir():
        raise InputError(f"{path} is no folder: give the folder of a sweep or of runs")
    sweep = _read_sweep(path / "sweep.json")
    folders: dict[str, Path] = {}
    for folder in _run_folders(path):
        name = _name(folder, path, sweep is not None)
        # A copy beside the sweep's own place is another run.
        folders[f"../{name}" if name in folders else name] = folder
    planned = {} if sweep is None else _planned(sweep["runs"], path / "sweep.json")
    if not folders and not planned:
        raise InputError(f"no run lies below {path}: give the folder of a sweep or of runs")
    runs = [
        read_run(folders[name], name, plan[0])
        if name in folders
        else _without_files(path / "runs" / name, name, *plan)
        for name, plan in planned.items()
    ]
    unplanned = tuple(sorted(folders.keys() - planned.keys()))
    runs += [read_run(folders[name], name) for name in unplanned]
    if sweep is None:
        return Study(path, tuple(runs))
    grid = str(sweep.get("grid", "the grid"))
    return Study(path, tuple(runs), grid, str(sweep.get("text", "")), unplanned)


def _without_files(folder: Path, name: str, settings: Settings | None, reason: str) -> StudyRun:
    """A run of the grid whose folder shows no files: not begun, or somebody else's."""
    try:
        list(folder.iterdir())
    except PermissionError as error:
        refused = f"{folder.name} cannot be read: {error.strerror}"
        return StudyRun(name, "unreadable", refused, settings, folder=RunFolder(folder))
    except OSError:
        pass
    return StudyRun(name, "missing", reason or "not started", settings)


def _run_folders(path: Path) -> Iterator[Path]:
    """Folders of runs; nothing is looked for inside one, nor twice in a folder with two names."""
    seen: set[tuple[int, int]] = set()
    for folder, below, files in os.walk(path, followlinks=True):
        below.sort(key=lambda name: (name != "runs", name))  # A sweep's own place comes first.
        try:
            status = os.stat(folder)
        except FileNotFoundError:  # removed while its parent was read
            continue
        if (status.st_dev, status.st_ino) in seen:
            below.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        if _MARKS & set(files):
            below.clear()
            yield Path(folder)


def _name(folder: Path, study: Path, is_sweep: bool) -> str:
    name = folder.relative_to(study)
    if is_sweep and name.parts[:1] == ("runs",) and len(name.parts) > 1:
        name = name.relative_to("runs")
    told = study.resolve().name if name == Path(".") else name.as_posix()
    # A name of bytes that are no text cannot be written to a table.
    return os.fsencode(told).decode(errors="replace")


def _read_sweep(path: Path) -> Record | None:
    if not path.is_file():
        return None
    try:
        sweep = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    version = sweep.get("version") if isinstance(sweep, dict) else None
    if version != VERSION or not isinstance(sweep.get("runs"), list):
        raise InputError(
            f"{path} has version {version!r}, this program reads {VERSION}: use the version of "
            "the program that wrote it"
        )
    return sweep


def _planned(entries: list[Any], source: Path) -> dict[str, tuple[Settings | None, str]]:
    """The settings of each run of a grid, or why they cannot be read."""
    planned: dict[str, tuple[Settings | None, str]] = {}
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InputError(f"{source}: run {number} has no name")
        name = entry["name"]
        try:
            config = from_json(encode(entry.get("config") or {}).decode(), source)
            planned[name] = resolve_for(config, ""), ""
        except InputError as error:
            planned[name] = None, f"not started, and its configuration cannot be read: {error}"
    return planned
