"""A study: a folder of runs, and the grid that a sweep planned them by, where there is one.

A sweep's folder has `sweep.json`; without it all run folders at any depth are the study, and
nothing is known to be missing.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sparsemlp.config_file import from_json
from sparsemlp.errors import InputError
from sparsemlp.files import Record, encode
from sparsemlp.mask_options import NEED_A_MASK
from sparsemlp.plan import all_rules
from sparsemlp.rules import BlockMasking
from sparsemlp.settings import Settings, model_and_plan
from sparsemlp.study_run import StudyRun, read_run, resolve_for

_VERSION = 1
_MARKS = frozenset({"config.json", "metrics.jsonl", "summary.json", "failure.json"})
"""A folder with one of these is a run's."""

_OF_THE_MACHINE = frozenset({"data_dir", "checkpoint_every", "tensorboard", "allow_nan"})
"""Options that change nothing of what is computed."""
_RULE = frozenset({"block", "ratio", "backward", "config"})
"""Options that figures have axes and colours for."""
_TOLD = frozenset(
    {
        *("mask_layers", "activation", "gradient", "gradient_method", "score", "score_decay"),
        *("hysteresis", "budget", "ratio_schedule", "freeze_epoch", "dropped_decay", "moments"),
    }
)
"""Options that the label of a run tells already."""
_OF_A_MASK = frozenset({"mask_layers", "mask_start_epoch", "score"})
"""Options that change nothing of a dense run."""


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
    def _variant_options(self) -> tuple[str, ...]:
        masked = [run for run in self.runs if run.masking is not None]
        return tuple(n for n in differing_options(masked) if n not in _RULE | {"seed"})

    @functools.cached_property
    def _has_several_skeletons(self) -> bool:
        masked = [run for run in self.runs if run.masking is not None and run.settings is not None]
        given = any(run.settings is not None and run.settings.config for run in masked)
        return given and len({_skeleton(run) for run in masked}) > 1

    def unreadable(self) -> dict[str, list[str]]:
        """Why runs could not be read, and which ones."""
        found: dict[str, list[str]] = {}
        for run in self.runs:
            if run.status == "unreadable":
                found.setdefault(run.reason, []).append(run.name)
        return found

    def variant(self, run: StudyRun) -> str:
        """What sets a masked run apart beside block, ratio, backward pass and seed, in words."""
        words = [_skeleton(run)] if self._has_several_skeletons else []
        return ", ".join(filter(None, [*words, _in_words(run, self._variant_options)]))

    def label(self, run: StudyRun) -> str:
        """The masking of a run in words, and what else sets it apart but its seed."""
        ignored = (
            _RULE | _TOLD | _OF_A_MASK | {"seed"} if run.is_dense else _RULE | _TOLD | {"seed"}
        )
        others = _in_words(run, (name for name in self.differing if name not in ignored))
        return f"{run.label} ({others})" if others else run.label

    def other_options(self, run: StudyRun) -> str:
        """The options that differ between runs, beside block, ratio, backward pass and seed."""
        ignored = _RULE | {"seed"} | (_OF_A_MASK if run.is_dense else frozenset())
        if run.masking is None:
            ignored -= {"config"}
        return _in_words(run, (name for name in self.differing if name not in ignored))


def _skeleton(run: StudyRun) -> str:
    """Depth and masked kernels of a run, which a model string says in one option with its ratio."""
    depth = None if run.settings is None else model_and_plan(run.settings)[0]
    masked = [
        pattern.removesuffix("/kernel").removeprefix("*/").rstrip("?")
        for pattern in sorted(run.plan)
        if any(isinstance(rule, BlockMasking) for rule in all_rules({pattern: run.plan[pattern]}))
    ]
    return f"depth {depth}, {' '.join(masked)} masked"


def _in_words(run: StudyRun, names: Iterable[str]) -> str:
    """Options with their values, but for ways to move masks that are not taken."""
    values = {name: getattr(run.settings, name) for name in names}
    said = {n: v for n, v in values.items() if v is not None and v != NEED_A_MASK.get(n)}
    return ", ".join(f"{name}={value}" for name, value in said.items())


def differing_options(runs: Iterable[StudyRun]) -> tuple[str, ...]:
    """Names of the options that differ between runs, in the order of `Config`."""
    known = [run.settings for run in runs if run.settings is not None]
    names = [f.name for f in dataclasses.fields(Settings) if f.name not in _OF_THE_MACHINE]
    return tuple(name for name in names if len({repr(getattr(s, name)) for s in known}) > 1)


def read_study(path: Path) -> Study:
    """Reads a folder of runs, at any depth.

    Raises:
      InputError: there is no such folder, no run in it, or a `sweep.json` that cannot be read.
    """
    if not path.is_dir():
        raise InputError(f"{path} is no folder: give the folder of a sweep or of runs")
    sweep = _read_sweep(path / "sweep.json")
    folders = {_name(folder, path, sweep is not None): folder for folder in _run_folders(path)}
    planned = {} if sweep is None else _planned(sweep["runs"], path / "sweep.json")
    if not folders and not planned:
        raise InputError(f"no run lies below {path}: give the folder of a sweep or of runs")
    runs = [
        read_run(folders[name], name, plan[0])
        if name in folders
        else StudyRun(name, "missing", plan[1] or "not started", plan[0])
        for name, plan in planned.items()
    ]
    unplanned = tuple(sorted(folders.keys() - planned.keys()))
    runs += [read_run(folders[name], name) for name in unplanned]
    if sweep is None:
        return Study(path, tuple(runs))
    grid = str(sweep.get("grid", "the grid"))
    return Study(path, tuple(runs), grid, str(sweep.get("text", "")), unplanned)


def _run_folders(path: Path) -> Iterator[Path]:
    """Folders of runs, in order; nothing is looked for inside one."""
    for folder, below, files in os.walk(path):
        below.sort()
        if _MARKS & set(files):
            below.clear()
            yield Path(folder)


def _name(folder: Path, study: Path, is_sweep: bool) -> str:
    name = folder.relative_to(study)
    if is_sweep and name.parts[:1] == ("runs",) and len(name.parts) > 1:
        name = name.relative_to("runs")
    return study.resolve().name if name == Path(".") else name.as_posix()


def _read_sweep(path: Path) -> Record | None:
    if not path.is_file():
        return None
    try:
        sweep = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    version = sweep.get("version") if isinstance(sweep, dict) else None
    if version != _VERSION or not isinstance(sweep.get("runs"), list):
        raise InputError(
            f"{path} has version {version!r}, this program reads {_VERSION}: use the version of "
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
