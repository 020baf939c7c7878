"""What a SLURM job does: trains its runs, and when its time is up saves, requeues itself and ends.

SLURM announces the end of a job by a signal: SIGUSR2 some time before its limit or when it is
preempted (submitit asks for that), SIGTERM at a preemption or a cancellation. The run stops at its
next safe place and is saved; then submitit's own handler puts the job back into the queue. A job
that was cancelled is not put back.
"""

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from sparsemlp.data import DataSets
from sparsemlp.errors import InputError
from sparsemlp.runs.interruption import noted_signals
from sparsemlp.sweeps.job_forming import epochs_of, name_of
from sparsemlp.sweeps.sweep_folder import SweepFolder
from sparsemlp.sweeps.sweep_job import train_job
from sparsemlp.sweeps.sweep_progress import SweepReporter


class SweepJob:
    """A job that submitit pickles, runs on a node, and pickles again when it is requeued.

    Args:
      path: folder of the sweep, absolute.
      names: the runs of the job.
    """

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path = path
        self.names = names

    def __call__(self) -> list[str]:
        """Trains the runs.

        Returns:
          A line on each of them.

        Raises:
          SystemExit: a run failed (1), or the job was interrupted (128 + the signal; submitit's
            code if it was requeued).
        """
        warnings.simplefilter("default", UserWarning)
        folder = SweepFolder(self.path)
        sweep = folder.read()
        if sweep is None:
            raise InputError(f"{folder.sweep} is gone: start the sweep again")
        runs = [run for run in sweep.runs if run.name in self.names]
        announced = preemption_signal()
        requeue = cast(Callable[[int, Any], None], signal.getsignal(announced))
        with (
            noted_signals(signal.SIGTERM, announced) as interruption,
            SweepReporter(len(runs), 0, epochs_of(runs)) as reporter,
        ):
            reporter.begin(name_of(runs), epochs_of(runs))
            # What failed before this job was submitted has no failure.json any more; what failed
            # in it stays failed where SLURM starts the job again.
            outcomes = train_job(
                runs, folder, DataSets(), reporter, interruption, retry_failed=False
            )
            ends = {run.name: outcome.end for run, outcome in zip(runs, outcomes, strict=True)}
            for run, outcome in zip(runs, outcomes, strict=True):
                reporter.end(run.name, outcome.told)
            self.names = [name for name in self.names if ends.get(name) == "interrupted"]
            if self.names and interruption.signal is not None:
                if announced in interruption.heard or is_running():
                    requeue(announced, None)
                sys.exit(128 + interruption.signal)
        if "failed" in ends.values():
            sys.exit(1)
        return [outcome.told for outcome in outcomes]

    def checkpoint(self) -> Any:
        """What submitit is to run when the job starts again: the runs that are not finished."""
        return submitit().helpers.DelayedSubmission(self)


def preemption_signal() -> int:
    """The signal by which submitit lets SLURM announce the end of a job."""
    return signal.Signals[f"SIG{submitit().JobEnvironment.USR_SIG}"]


def is_running() -> bool:
    """Whether SLURM counts this job as running, as it does while it preempts it, not cancels it."""
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    # The last task of an array has the number of the array: as such it would stand for all of it.
    job = f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")
    query = ["squeue", "--noheader", "--format=%T", "--jobs", job]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
        return answer.stdout.strip() == "RUNNING"
    return False


def submitit() -> Any:
    """The package, imported without the logging that it would set up.

    That would close the log handlers of everybody else in this process. On a node submitit itself
    starts the process, and its logging stands.

    Raises:
      InputError: it is not installed.
    """
    name = "SUBMITIT_LOG_LEVEL"
    chosen = os.environ.get(name)
    os.environ[name] = chosen or "NOCONFIG"
    try:
        return importlib.import_module("submitit")
    except ImportError as error:
        raise InputError(
            "--launcher=slurm needs submitit: pip install submitit, or take --launcher=local"
        ) from error
    finally:
        if chosen is None:
            del os.environ[name]
