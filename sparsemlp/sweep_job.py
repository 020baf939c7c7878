"""A job: runs of a sweep that are trained in one go, by whichever launcher.

`form_jobs` decides which runs those are, `train_job` trains them. Every run ends in its own run
folder, however it was trained.
"""

import dataclasses
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import jax

from sparsemlp.data import ImageDataset, load_dataset
from sparsemlp.errors import InputError
from sparsemlp.interruption import Interruption
from sparsemlp.lock import OccupiedError
from sparsemlp.progress import Reporter
from sparsemlp.run import NotFiniteError, Run
from sparsemlp.settings import Settings, describe_run
from sparsemlp.sweep_folder import SweepFolder, SweepRun
from sparsemlp.sweep_runs import resolved, why_other_run

End = Literal["finished", "failed", "interrupted", "occupied"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run of a job ended, and one line about it."""

    end: End
    told: str


class DataSets:
    """The data sets of a sweep, each loaded once."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, Path | None], ImageDataset] = {}

    def load(self, settings: Settings) -> ImageDataset:
        """The data set of a run.

        Raises:
          InputError: it cannot be found or is damaged.
        """
        key = settings.dataset, settings.data_dir
        if key not in self._loaded:
            self._loaded[key] = load_dataset(*key)
        return self._loaded[key]


def form_jobs(runs: Sequence[SweepRun]) -> list[list[SweepRun]]:
    """Divides runs into jobs, in their order: for now each run is a job of its own."""
    return [[run] for run in runs]


def train_job(
    job: Sequence[SweepRun],
    folder: SweepFolder,
    data: DataSets,
    reporter: Reporter,
    interruption: Interruption,
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

    Returns:
      How each run ended, in the order of the job.

    Raises:
      SaveError: not even a failure can be recorded.
    """
    return [_train(run, folder, data, reporter, interruption) for run in job]


def _train(
    run: SweepRun,
    folder: SweepFolder,
    data: DataSets,
    reporter: Reporter,
    interruption: Interruption,
) -> Outcome:
    try:
        return _train_in_folder(run, folder, data, reporter, interruption)
    except OccupiedError:
        return Outcome("occupied", "another process is training it")
    except Exception as error:
        if not isinstance(error, InputError | OSError | NotFiniteError):
            traceback.print_exc(file=sys.stderr)
        folder.write_failure(run.name, error)
        return Outcome("failed", f"failed, {folder.failure(run.name)}")
    finally:
        # Each run has programs of its own; their machine code would pile up over a sweep.
        jax.clear_caches()


def _train_in_folder(
    run: SweepRun,
    folder: SweepFolder,
    data: DataSets,
    reporter: Reporter,
    interruption: Interruption,
) -> Outcome:
    place = folder.run(run.name)
    place.path.mkdir(parents=True, exist_ok=True)
    with place.locked():
        if folder.state(run.name) == "finished":
            return Outcome("finished", "finished already")
        if interruption.signal is not None:
            return Outcome("interrupted", "not begun")
        if (why := why_other_run(run, folder)) is not None:
            raise InputError(why)
        place.failure.unlink(missing_ok=True)
        settings = resolved(run)
        dataset = data.load(settings)
        resume = place.config.exists()
        if not resume:
            place.create()
        elif dataset.notice is None:
            notice = place.read_environment().get("notice")
            dataset = dataclasses.replace(dataset, notice=notice)
        trained = Run(settings, dataset, place, describe_run(settings, dataset.source))
        summary = trained.train(reporter, interruption, resume=resume)
    if summary is None:
        return Outcome("interrupted", "interrupted, saved")
    return Outcome(
        "finished",
        f"test top-1 {summary['test_top1']:.2%} (best {summary['best_test_top1']:.2%})",
    )
