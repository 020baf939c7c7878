"""From a grid to the runs of a sweep: settled, named, and in agreement with what began before."""

import dataclasses
from typing import NamedTuple

from sparsemlp.configuration.config import CHANGEABLE, Config, with_data
from sparsemlp.configuration.config_file import read_config
from sparsemlp.configuration.settings import Settings, resolve
from sparsemlp.data import load_dataset
from sparsemlp.errors import InputError
from sparsemlp.sweeps.grid import Grid, GridRun
from sparsemlp.sweeps.rehearsal import rehearse
from sparsemlp.sweeps.run_names import distinct, run_name
from sparsemlp.sweeps.sweep_folder import Sweep, SweepFolder, SweepRun

_FOUND_BY_AUTO = ("cifar10", "digits")


class _Found(NamedTuple):
    """What the data set of a run is called, and what has to be told of how it was found."""

    name: str
    notice: str | None


class _Wanted(NamedTuple):
    """A run of the grid with every open option filled in."""

    run: GridRun
    settings: Settings
    notice: str | None


def settle(grid: Grid, folder: SweepFolder, *, look: bool = False) -> Sweep:
    """The runs of a grid, every open option filled in.

    A sweep that began in the folder keeps its names and what `auto` found then; the grid may only
    add runs to it.

    Args:
      grid: the grid.
      folder: the folder of the sweep.
      look: only look: `auto` is not settled by a download.

    Raises:
      InputError: the grid changes or leaves out a run of the sweep, a run folder holds another run
        or one of a version that cannot be read, or the data set cannot be found, or is one with
        which a run that leaves it open cannot be trained.
    """
    stored = folder.read()
    before = [] if stored is None else stored.runs
    settled: dict[tuple[str, object], _Found] = {}
    wanted: list[_Wanted] = []
    for run in grid.runs:
        key = run.config.dataset, run.config.data_dir
        if key not in settled:
            settled[key] = _data_of(run.config, before, look=look)
        name, notice = settled[key]
        wanted.append(_Wanted(run, _settings(run.config, name), notice))
    _rehearse_found(wanted, grid)
    sweep = Sweep(grid.path.name, grid.text, _merged(before, wanted, grid, folder))
    _check_folders(sweep, folder)
    return sweep


def resolved(run: SweepRun) -> Settings:
    """The settings of a run, with the defaults of options that are younger than it."""
    return resolve(run.config, run.config.dataset)


def _data_of(config: Config, before: list[SweepRun], *, look: bool) -> _Found:
    """What `auto` stands for: what it was when the sweep began, or what is at hand."""
    known = {
        run.config.dataset: run.notice for run in before if run.config.dataset in _FOUND_BY_AUTO
    }
    if config.dataset == "auto" and len(known) == 1:
        return _Found(*known.popitem())
    if config.dataset != "auto" or look:
        return _Found(config.dataset, None)
    dataset = load_dataset(config.dataset, config.data_dir)
    return _Found(dataset.name, dataset.notice)


def _rehearse_found(wanted: list[_Wanted], grid: Grid) -> None:
    """Raises InputError that lists why runs cannot be trained with the data that `auto` found.

    Until they were found the grid was checked with CIFAR-10, whose runs have more epochs.
    """
    problems: dict[str, None] = {}
    for run, settings, _ in wanted:
        if run.config.dataset == "auto" and settings.dataset != "auto":
            # What does not depend on the data is checked already, for whoever is to train.
            config = dataclasses.replace(run.config, dataset=settings.dataset, devices=1)
            try:
                rehearse(config, is_remote=True)
            except InputError as error:
                problems[f"{settings.dataset}, which dataset auto is here: {error}"] = None
    if problems:
        raise InputError("\n".join(f"{grid.path}: {problem}" for problem in problems))


def _settings(config: Config, data: str) -> Settings:
    return resolve(with_data(config, data), data)


def _merged(
    before: list[SweepRun],
    wanted: list[_Wanted],
    grid: Grid,
    folder: SweepFolder,
) -> list[SweepRun]:
    """The runs that began before, in their order, with the new ones behind them."""
    _require_distinct(wanted, grid)
    unmatched = {_identity(resolved(run)): run for run in before}
    kept: dict[str, SweepRun] = {}
    added: list[_Wanted] = []
    for each in wanted:
        known = unmatched.pop(_identity(each.settings), None)
        if known is None:
            added.append(each)
        else:
            kept[known.name] = SweepRun(known.name, each.settings, known.notice)
    if unmatched:
        raise InputError(_why_other(list(unmatched.values()), added, grid, folder))
    runs = [kept[run.name] for run in before]
    taken = {run.name.casefold() for run in runs}
    for run, settings, notice in added:
        name = distinct(run_name(settings, run.swept), settings, taken)
        taken.add(name.casefold())
        runs.append(SweepRun(name, settings, notice))
    return runs


def _require_distinct(wanted: list[_Wanted], grid: Grid) -> None:
    """Raises InputError where two spellings of a data set make one run of two."""
    first: dict[tuple[object, ...], GridRun] = {}
    for run, settings, _ in wanted:
        earlier = first.setdefault(_identity(settings), run)
        if earlier is not run:
            raise InputError(
                f"{grid.path}: the data sets {earlier.config.dataset!r} and {run.config.dataset!r} "
                f"are the same here ({settings.dataset}), so that runs would be trained twice: "
                "leave one out"
            )


def _identity(settings: Settings) -> tuple[object, ...]:
    return tuple(
        getattr(settings, field.name)
        for field in dataclasses.fields(Config)
        if field.name not in CHANGEABLE
    )


def _why_other(
    missing: list[SweepRun],
    added: list[_Wanted],
    grid: Grid,
    folder: SweepFolder,
) -> str:
    """Says which run of the sweep the grid lacks, and in what a new one of that name differs."""
    names = {run_name(settings, run.swept): settings for run, settings, _ in added}
    run = next((run for run in missing if run.name in names), missing[0])
    differs = ""
    if run.name in names:
        differs = f" as it was begun ({differences(resolved(run), names[run.name])})"
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return (
        f"{grid.path} lacks the run {run.name}{differs}{more} of the sweep in {folder.path}: a "
        "sweep can be added to, not changed; bring the file back, or choose another folder with "
        "--out"
    )


def differences(before: Config, now: Config) -> str:
    """The options in which two configurations differ, as `lr 0.01, now 0.02`."""
    return ", ".join(
        f"{field.name} {getattr(before, field.name)}, now {getattr(now, field.name)}"
        for field in dataclasses.fields(Config)
        if field.name not in CHANGEABLE and getattr(before, field.name) != getattr(now, field.name)
    )


def _check_folders(sweep: Sweep, folder: SweepFolder) -> None:
    """Raises InputError that lists the run folders which hold something else."""
    found = [why for run in sweep.runs if (why := why_other_run(run, folder)) is not None]
    if found:
        listed = "\n  ".join(found[:20] + ([f"and {len(found) - 20} more"] * (len(found) > 20)))
        raise InputError(
            "run folders that are damaged or not of this sweep: move them away, or choose another "
            f"folder with --out\n  {listed}"
        )


def why_other_run(run: SweepRun, folder: SweepFolder) -> str | None:
    """Why the folder of a run cannot be gone on with, None if it can or is not there yet."""
    place = folder.run(run.name)
    try:
        if place.path.exists() and not place.path.is_dir():
            return f"{place.path} is no folder"
        if not place.config.exists():
            return None
        stored = read_config(place.config)
        found = differences(resolve(stored, stored.dataset), resolved(run))
    except InputError as error:
        return str(error)
    except OSError as error:
        return f"{place.path} cannot be read: {error.strerror}"
    return f"{place.path} is another run: {found}" if found else None
