"""The local launcher: the jobs of a sweep in this process, one after another."""

import contextlib
import shlex
import sys
from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from sparsemlp.data import DataSets, LabelledImages
from sparsemlp.populations.grouping import chooses_population
from sparsemlp.runs.interruption import deferred_signals
from sparsemlp.runs.progress import TalkativeConsole, say
from sparsemlp.sweeps.grid import Grid
from sparsemlp.sweeps.job_forming import epochs_of, form_jobs, name_of, reasons_apart
from sparsemlp.sweeps.sweep_folder import State, Sweep, SweepFolder, SweepRun
from sparsemlp.sweeps.sweep_job import train_job
from sparsemlp.sweeps.sweep_progress import SweepReporter
from sparsemlp.sweeps.sweep_runs import resolved, settle

_TOLD: dict[State, str] = {
    "finished": "finished, is left as it is",
    "begun": "begun, goes on from its last checkpoint",
    "new": "new",
}


def begin(grid: Grid, folder: SweepFolder) -> Sweep:
    """Brings the folder of a sweep up to a grid, in a folder that is locked.

    Raises:
      InputError: the grid does not fit what the folder holds; nothing is changed then.
      SaveError: the disk is full or refuses a write.
    """
    sweep = settle(grid, folder)
    folder.write(sweep)
    return sweep


def runs_to_train(sweep: Sweep, folder: SweepFolder, *, retry_failed: bool) -> list[SweepRun]:
    """The runs that are not finished, nor failed unless those are wanted again."""
    left_out = ("finished",) if retry_failed else ("finished", "failed")
    return [run for run in sweep.runs if folder.state(run.name) not in left_out]


def train_sweep(
    grid: Grid,
    folder: SweepFolder,
    *,
    retry_failed: bool,
    population: str = "auto",
    console: Console | None = None,
) -> int:
    """Trains all runs of a grid that are still to be trained.

    Args:
      grid: the grid.
      folder: the folder of the sweep, made if needed.
      retry_failed: whether runs that failed are tried again.
      population: whether runs that differ in ratio, backward mode or seed alone are trained
        together: `on`, `off`, or `auto`, where it is faster.
      console: where to print; standard output by default.

    Returns:
      The exit code: 0, or 1 if runs failed or another process trains them, or 128 + the number
      of the signal that ended it.

    Raises:
      InputError: the grid does not fit the folder, another sweep runs there, or a data set cannot
        be found; nothing was trained then.
      SaveError: the disk is full or refuses a write.
      DeviceLostError: the device answers no more after a run failed; the others are as they were.
    """
    console = console or TalkativeConsole()
    together = chooses_population(population)
    folder.create()
    with folder.locked():
        sweep = begin(grid, folder)
        runs = runs_to_train(sweep, folder, retry_failed=retry_failed)
        data = load_data(runs, console)
        jobs = form_jobs(runs, together=together)
        tell_who_is_alone(runs, population, console)
        n_epochs = sum(map(epochs_of, jobs))
        n_done = len(sweep.runs) - len(runs)
        with (
            SweepReporter(len(sweep.runs), n_done, n_epochs, console) as reporter,
            deferred_signals() as interruption,
        ):
            reporter.say(f"sweep   {len(sweep.runs)} runs, {n_done} done, in {folder.path}")
            for job in jobs:
                if interruption.signal is not None:
                    break
                reporter.begin(name_of(job), epochs_of(job))
                outcomes = train_job(
                    job, folder, data, reporter, interruption, retry_failed=retry_failed
                )
                for run, outcome in zip(job, outcomes, strict=True):
                    if outcome.end != "interrupted":
                        reporter.end(run.name, outcome.told)
            number = interruption.signal
        states = _states(sweep, folder)
        if states["finished"] + states["failed"] == len(sweep.runs):
            number = None  # The signal came too late to stop anything.
        word = "done   " if number is None else "so far "
        say(console, f"{word} {_counted(states)}, in {folder.path}")
        if number is not None:
            say(
                console,
                f"interrupted by {interruption.name}; all is saved, go on with:\n  "
                + shlex.join(["python", *sys.argv]),
            )
            return 128 + number
        _tell_failures(sweep, folder, console)
        return 0 if states["finished"] == len(sweep.runs) else 1


def tell_who_is_alone(runs: Sequence[SweepRun], population: str, console: Console) -> None:
    """Says which runs are no population although that was asked for, and why."""
    if population == "on":
        for reason, count in reasons_apart(runs).items():
            say(console, f"NOTE: {count} run{'s' * (count > 1)} trained alone: {reason}")


def load_data(runs: Sequence[SweepRun], console: Console) -> DataSets:
    """Loads every data set of these runs, before any of them is trained.

    Raises:
      InputError: one cannot be found or is damaged.
    """
    data = DataSets()
    known: dict[int, LabelledImages] = {}
    notices: dict[str, None] = {}
    with console.status("loading data") if console.is_terminal else contextlib.nullcontext():
        for run in runs:
            settings = resolved(run)
            dataset = data.load(settings.dataset, settings.data_dir, image_size=settings.image_size)
            known[id(dataset)] = dataset
            notices |= dict.fromkeys(filter(None, (run.notice, dataset.notice)))
    for notice in notices:
        say(console, f"NOTE: {notice}", style="bold reverse")
    for dataset in known.values():
        say(
            console,
            f"data    {dataset.source}: {dataset.n_train:,} training and "
            f"{dataset.n_test:,} test images, {dataset.n_classes} classes",
        )
    return data


def tell_plan(
    grid: Grid,
    folder: SweepFolder,
    *,
    retry_failed: bool,
    population: str = "auto",
    console: Console | None = None,
) -> Sweep:
    """Prints what a sweep would do with each run, as `train_sweep`; changes nothing.

    Raises:
      InputError: the grid does not fit what the folder holds.
    """
    console = console or TalkativeConsole()
    folder.check()
    sweep = settle(grid, folder, look=True)
    states = _states(sweep, folder)
    for run in sweep.runs:
        state = folder.state(run.name)
        told = _TOLD.get(state) or (
            f"failed, {'is tried again' if retry_failed else 'is left: --retry-failed tries it'} "
            f"({folder.run(run.name).read_failure()})"
        )
        say(console, f"{run.name}: {told}")
    runs = runs_to_train(sweep, folder, retry_failed=retry_failed)
    n_epochs = sum(resolved(run).epochs for run in runs)
    say(
        console,
        f"{_counted(states)}; {n_epochs:,} epoch{'s' * (n_epochs != 1)} at most, in {folder.path}",
    )
    tell_who_is_alone(runs, population, console)
    return sweep


def _states(sweep: Sweep, folder: SweepFolder) -> Counter[State]:
    each: list[State] = [folder.state(run.name) for run in sweep.runs]
    return Counter(each)


def _counted(states: Counter[State]) -> str:
    order: tuple[State, ...] = ("finished", "failed", "begun", "new")
    words = {"new": "not begun"}
    return ", ".join(f"{states[s]} {words.get(s, s)}" for s in order if states[s])


def _tell_failures(sweep: Sweep, folder: SweepFolder, console: Console) -> None:
    failed = [run for run in sweep.runs if folder.state(run.name) == "failed"]
    for run in failed:
        say(console, f"failed  {run.name}, {folder.run(run.name).read_failure()}")
    if failed:
        say(console, "again   the same command with --retry-failed, once what is wrong is mended")
