"""Training a job: runs of a sweep that are trained in one go, by whichever launcher.

`job_forming` decides which runs those are. Every run ends in its own run folder, however it was
trained.
"""

import contextlib
import dataclasses
import functools
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, cast

import jax

from sparsemlp.configuration.descriptions import describe_run
from sparsemlp.data import DataSets, ImageDataset, LabelledImages
from sparsemlp.device import device_answers
from sparsemlp.errors import DeviceLostError, InputError, NotFiniteError, SaveError
from sparsemlp.files import Record
from sparsemlp.populations.population import Member, train_population
from sparsemlp.populations.population import Outcome as PopulationOutcome
from sparsemlp.runs.interruption import Interruption
from sparsemlp.runs.lock import OccupiedError
from sparsemlp.runs.progress import Reporter
from sparsemlp.runs.run import Run
from sparsemlp.sweeps.sweep_folder import SweepFolder, SweepRun
from sparsemlp.sweeps.sweep_runs import resolved, why_other_run

End = Literal["finished", "failed", "interrupted", "occupied"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run of a job ended, and one line about it."""

    end: End
    told: str


_OCCUPIED = Outcome("occupied", "another process is training it")


def train_job(
    job: Sequence[SweepRun],
    folder: SweepFolder,
    data: DataSets,
    reporter: Reporter,
    interruption: Interruption,
    *,
    retry_failed: bool,
) -> list[Outcome]:
    """Trains the runs of a job to their ends, or until a signal asks to stop.

    A finished run is left as it is, a begun one goes on from its last checkpoint. What goes wrong
    with a run is recorded in its folder and ends that run alone.

    Args:
      job: the runs.
      folder: the sweep.
      data: where data sets come from.
      reporter: who hears of the progress.
      interruption: whether to stop.
      retry_failed: whether runs that failed go on from their last checkpoints; else they are left.

    Returns:
      How each run ended, in the order of the job.

    Raises:
      SaveError: not even a failure can be recorded.
      DeviceLostError: the device answers no more after a run failed.
    """
    prepare = functools.partial(
        _prepare, folder=folder, data=data, interruption=interruption, retry_failed=retry_failed
    )
    if len(job) > 1:
        found = _train_together(job, folder, prepare, reporter, interruption)
        return [found[run.name] for run in job]
    return [_train(run, folder, prepare, reporter, interruption) for run in job]


def _train(
    run: SweepRun,
    folder: SweepFolder,
    prepare: "_Prepare",
    reporter: Reporter,
    interruption: Interruption,
) -> Outcome:
    try:
        return _train_in_folder(run, folder, prepare, reporter, interruption)
    except OccupiedError:
        return _OCCUPIED
    except Exception as error:
        return _failed(run, folder, error)
    finally:
        # Each run has programs of its own; their machine code would pile up over a sweep.
        jax.clear_caches()


def _train_in_folder(
    run: SweepRun,
    folder: SweepFolder,
    prepare: "_Prepare",
    reporter: Reporter,
    interruption: Interruption,
) -> Outcome:
    place = folder.run(run.name)
    place.path.mkdir(parents=True, exist_ok=True)
    with place.locked():
        found = prepare(run)
        if isinstance(found, Outcome):
            return found
        (settings, _, title), dataset, resume = found
        trained = Run(settings, dataset, place, title)
        return _ended(trained.train(reporter, interruption, resume=resume))


def _train_together(
    job: Sequence[SweepRun],
    folder: SweepFolder,
    prepare: "_Prepare",
    reporter: Reporter,
    interruption: Interruption,
) -> dict[str, Outcome]:
    """Trains runs as a population; those that have saved more steps than others go on first."""
    outcomes: dict[str, Outcome] = {}
    ready: list[tuple[SweepRun, _Prepared]] = []
    with contextlib.ExitStack() as locks:
        for run in job:
            place = folder.run(run.name)
            try:
                place.path.mkdir(parents=True, exist_ok=True)
                locks.enter_context(place.locked())
                found = prepare(run)
            except OccupiedError:
                outcomes[run.name] = _OCCUPIED
                continue
            except Exception as error:
                outcomes[run.name] = _failed(run, folder, error)
                continue
            if isinstance(found, Outcome):
                outcomes[run.name] = found
            else:
                ready.append((run, found))
        if ready:
            # A kill while the first files are written leaves some of them begun and others new.
            resume = any(found.resume for _, found in ready)
            outcomes |= _train_ready(ready, folder, reporter, interruption, resume=resume)
    return outcomes


def _train_ready(
    those: Sequence[tuple[SweepRun, "_Prepared"]],
    folder: SweepFolder,
    reporter: Reporter,
    interruption: Interruption,
    *,
    resume: bool,
) -> dict[str, Outcome]:
    """Trains runs whose folders are locked."""
    members = [prepared.member for _, prepared in those]
    dataset = cast(ImageDataset, those[0][1].dataset)  # No other is grouped.
    try:
        ended = train_population(members, dataset, reporter, interruption, resume=resume)
    except Exception as error:
        ended = [PopulationOutcome(failure=error)] * len(those)
    finally:
        jax.clear_caches()
    outcomes: dict[str, Outcome] = {}
    for (run, _), end in zip(those, ended, strict=True):
        place = folder.run(run.name)
        if end.failure is None:
            outcomes[run.name] = _ended(end.summary)
        elif folder.state(run.name) == "finished":
            # Another member failed after this one's summary was written.
            outcomes[run.name] = Outcome("finished", "finished already")
        elif place.failure.exists():
            outcomes[run.name] = Outcome("failed", f"failed, {place.read_failure()}")
        else:
            outcomes[run.name] = _failed(run, folder, end.failure)
    return outcomes


class _Prepared(NamedTuple):
    """A run that is ready to be trained, its folder being locked."""

    member: Member
    dataset: LabelledImages
    resume: bool


_Prepare = Callable[[SweepRun], _Prepared | Outcome]


def _prepare(
    run: SweepRun,
    *,
    folder: SweepFolder,
    data: DataSets,
    interruption: Interruption,
    retry_failed: bool,
) -> _Prepared | Outcome:
    """Loads the data and makes the folder of a run, unless there is nothing to be trained."""
    place = folder.run(run.name)
    if folder.state(run.name) == "finished":
        return Outcome("finished", "finished already")
    if folder.state(run.name) == "failed" and not retry_failed:
        return Outcome("failed", f"failed before, {place.read_failure()}")
    if interruption.signal is not None:
        return Outcome("interrupted", "not begun")
    if (why := why_other_run(run, folder)) is not None:
        raise InputError(why)
    place.failure.unlink(missing_ok=True)
    settings = resolved(run)
    dataset = data.load(settings.dataset, settings.data_dir, image_size=settings.image_size)
    resume = place.config.exists()
    if not resume:
        place.create()
    if run.notice is not None:
        dataset = dataclasses.replace(dataset, notice=run.notice)
    member = Member(settings, place, describe_run(settings, dataset.source))
    return _Prepared(member, dataset, resume)


def _ended(summary: Record | None) -> Outcome:
    if summary is None:
        return Outcome("interrupted", "interrupted, saved")
    return Outcome(
        "finished",
        f"test top-1 {summary['test_top1']:.2%} (best {summary['best_test_top1']:.2%})",
    )


def _failed(run: SweepRun, folder: SweepFolder, error: Exception) -> Outcome:
    """Records why a run failed; what was not foreseen is shown whole.

    Raises:
      SaveError: the disk is full or refuses a write, for which no run is to blame: it can go on as
        an interrupted one.
      DeviceLostError: the device answers no more.
    """
    if isinstance(error, SaveError):
        raise error
    is_foreseen = isinstance(error, InputError | OSError | NotFiniteError)
    if not is_foreseen:
        traceback.print_exception(error, file=sys.stderr)
    folder.run(run.name).write_failure(error)
    if not is_foreseen and not device_answers():
        # No run is to blame for what fails on such a device.
        raise DeviceLostError(
            f"the device answers no more after run {run.name} failed: the same command goes on "
            "with the other runs, with --retry-failed also with that one"
        ) from error
    return Outcome("failed", f"failed, {folder.run(run.name).read_failure()}")
