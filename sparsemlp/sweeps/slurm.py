"""The SLURM launcher: the jobs of a sweep as arrays, submitted by submitit.

The launcher ends once the jobs are submitted. Each trains its runs in their folders, under locks
of their own, so that the same command may submit what is missing at any time.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from sparsemlp.errors import InputError, in_a_line
from sparsemlp.files import read_record, write_json
from sparsemlp.populations.grouping import chooses_population
from sparsemlp.runs.progress import TalkativeConsole, say
from sparsemlp.sweeps.grid import Grid
from sparsemlp.sweeps.job_forming import form_jobs
from sparsemlp.sweeps.run_names import safe_name
from sparsemlp.sweeps.slurm_job import SweepJob, submitit
from sparsemlp.sweeps.slurm_options import ANNOUNCED_SECONDS
from sparsemlp.sweeps.sweep import begin, load_data, runs_to_train, tell_who_is_alone
from sparsemlp.sweeps.sweep_folder import Sweep, SweepFolder, SweepRun

_LONGEST_ARRAY = 1000
"""Jobs of one array; SLURM's own default allows 1001."""

_MOST_TIMEOUTS = 100
"""How often a job that reached its time limit goes back into the queue."""


def submit_sweep(
    grid: Grid,
    folder: SweepFolder,
    *,
    retry_failed: bool,
    population: str = "auto",
    console: Console | None = None,
) -> int:
    """Submits a job for all runs of a grid that are still to be trained and not in the queue.

    Args:
      grid: the grid.
      folder: the folder of the sweep, made if needed; all nodes must see it.
      retry_failed: whether runs that failed are tried again.
      population: as for `train_sweep`; `auto` trains together where the jobs ask for GPUs.
      console: where to print; standard output by default.

    Returns:
      The exit code, 0.

    Raises:
      InputError: the grid does not fit the folder, a data set cannot be found, there is no SLURM
        here, or it refuses the jobs.
      SaveError: the disk is full or refuses a write.
    """
    console = console or TalkativeConsole()
    package = submitit()
    _check_path(folder.path.absolute())
    _queue()  # Without SLURM no folder is made.
    folder.create()
    with folder.locked():
        waiting = _waiting(folder)
        sweep = begin(grid, folder)
        submitted = _submitted(folder)
        runs = runs_to_train(sweep, folder, retry_failed=retry_failed)
        runs = [run for run in runs if run.name not in waiting]
        load_data(runs, console)
        jobs = form_jobs(runs, together=_together(grid, population))
        tell_who_is_alone(runs, population, console)
        for run in runs:
            folder.run(run.name).failure.unlink(missing_ok=True)  # A job leaves failed runs.
        for start in range(0, len(jobs), _LONGEST_ARRAY):
            submitted |= _submit(package, grid, folder, jobs[start : start + _LONGEST_ARRAY])
            write_json(folder.slurm / "submitted.json", submitted)
    told = f"{len(jobs)} jobs submitted for {len(runs)} runs"
    if waiting:
        told += f", {len(waiting)} runs are in the queue already"
    say(console, f"sweep   {told}, in {folder.path}")
    say(
        console,
        f"their output is in {folder.slurm}; once the queue is empty, the same command submits "
        "what is missing",
    )
    return 0


def tell_scripts(
    grid: Grid,
    folder: SweepFolder,
    sweep: Sweep,
    *,
    retry_failed: bool,
    population: str = "auto",
    console: Console | None = None,
) -> None:
    """Prints the scripts that a submission would hand to sbatch; needs no SLURM.

    Where there is one, runs whose jobs are in its queue are left out, as a submission does.

    Raises:
      InputError: submitit is missing, or the folder has a name that SLURM would misread.
    """
    console = console or TalkativeConsole()
    make_script = submitit().slurm.slurm._make_sbatch_string
    _check_path(folder.path.absolute())
    runs = runs_to_train(sweep, folder, retry_failed=retry_failed)
    if _submitted(folder):
        try:
            waiting = _waiting(folder)
            say(console, f"{len(waiting)} runs are in the queue already")
        except InputError as error:
            waiting = set[str]()
            say(console, f"NOTE: runs that are in the queue are not left out: {error}")
        runs = [run for run in runs if run.name not in waiting]
    jobs = form_jobs(runs, together=_together(grid, population))
    place = folder.slurm.absolute()
    for start in range(0, len(jobs), _LONGEST_ARRAY):
        n_jobs = min(_LONGEST_ARRAY, len(jobs) - start)
        script = make_script(
            command=f"{shlex.quote(sys.executable)} -u -m submitit.core._submit "
            + shlex.quote(str(place)),
            folder=place,
            map_count=n_jobs if n_jobs > 1 else None,
            **_parameters(grid),
        )
        say(console, script)


def _together(grid: Grid, population: str) -> bool:
    """Whether a job is a population; what the jobs ask for tells what the nodes have."""
    asks_for_gpus = any(_asks_for_gpus(*item) for item in grid.slurm.more.items())
    return chooses_population(population, "gpu" if asks_for_gpus else "cpu")


def _asks_for_gpus(option: str, value: Any) -> bool:
    """Whether an option of sbatch asks for a GPU, as `gpus: 1` or `gres: gpu:h100:2`."""
    wanted = str(value).split(",")
    if option == "gres":
        wanted = [each for each in wanted if each.split(":")[0] == "gpu"]
    elif not re.fullmatch(r"gpus(-per-.*)?", option):
        return False
    return any(each.split(":")[-1] != "0" for each in wanted)


def _submit(
    package: Any, grid: Grid, folder: SweepFolder, jobs: Sequence[Sequence[SweepRun]]
) -> dict[str, list[str]]:
    """Submits jobs as one array; returns the runs of each by its id."""
    executor = package.SlurmExecutor(folder=folder.slurm.absolute(), max_num_timeout=_MOST_TIMEOUTS)
    executor.update_parameters(**_parameters(grid))
    names = [[run.name for run in job] for job in jobs]
    try:
        with executor.batch():
            handles = [executor.submit(SweepJob(folder.path.absolute(), each)) for each in names]
        return {handle.job_id: each for handle, each in zip(handles, names, strict=True)}
    except (package.core.utils.FailedJobError, OSError) as error:
        why = in_a_line(error)
        raise InputError(f"sbatch refused the jobs: {why}; mend the section sbatch") from error


def _parameters(grid: Grid) -> dict[str, Any]:
    """What a script asks for, as submitit names it."""
    options = grid.slurm
    library = shlex.quote(str(Path(__file__).parents[2]))
    srun = ["--export=ALL"]
    if options.cpus_per_task is not None:
        # SLURM 22.05 and later do not hand this on from the script to its steps.
        srun.append(f"--cpus-per-task={options.cpus_per_task}")
    parameters = {
        "job_name": safe_name(grid.prefix or grid.path.stem),
        "time": options.minutes,
        "cpus_per_task": options.cpus_per_task,
        "signal_delay_s": ANNOUNCED_SECONDS,
        "stderr_to_stdout": True,
        "setup": [f'export PYTHONPATH={library}"${{PYTHONPATH:+:$PYTHONPATH}}"'],
        "srun_args": srun,
        "additional_parameters": {"requeue": True, **options.more},
    }
    return {name: value for name, value in parameters.items() if value is not None}


def _queue() -> set[str]:
    """Ids of the user's jobs that wait or run.

    Raises:
      InputError: SLURM does not answer.
    """
    query = ["squeue", "--me", "--noheader", "--array", "--format=%i"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=120, check=True)
    except FileNotFoundError as error:
        raise InputError(
            "there is no SLURM on this machine (squeue is not found): run this where sbatch "
            "works, or take --launcher=local; --dry-run shows the scripts anywhere"
        ) from error
    except (OSError, subprocess.SubprocessError) as error:
        why = (getattr(error, "stderr", None) or str(error)).strip()
        raise InputError(f"SLURM does not answer: {' '.join(why.split())}") from error
    return set(answer.stdout.split())


def _waiting(folder: SweepFolder) -> set[str]:
    """Names of the runs whose jobs are in the queue; raises as `_queue`."""
    queued = _queue()
    return {name for job, names in _submitted(folder).items() if job in queued for name in names}


def _submitted(folder: SweepFolder) -> dict[str, list[str]]:
    """The runs of every job that was submitted, by its id; none if that record is lost."""
    return read_record(folder.slurm / "submitted.json") or {}


def _check_path(path: Path) -> None:
    """Raises InputError for a folder whose name SLURM would read as something else."""
    if re.search(r"[%\\]", str(path)) or not str(path).isprintable():
        raise InputError(
            f"SLURM cannot write to {str(path)!r}: choose a folder with --out whose name has no "
            "percent sign, backslash or control character"
        )
