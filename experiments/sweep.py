"""Trains all runs of a grid file, here or on a SLURM cluster.

    python experiments/sweep.py experiments/configs/smoke.yaml --out=sweeps/smoke

The file lists options and their values (see experiments/configs); every combination is a run with
a folder of its own under OUT/runs. Started again, a sweep goes on: what is finished is left, what
was interrupted goes on from its checkpoint. A run that fails is recorded and the others go on.

Exit codes: 0 all runs are finished (or submitted), 1 some failed or another process trains them,
2 a bad option or grid file or a refused write, 4 the device answers no more, 128 + the number of
the signal after an interruption.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import tyro

from sparsemlp.errors import require_known
from sparsemlp.exit_codes import exit_code
from sparsemlp.options import cli, open_default
from sparsemlp.populations.grouping import chooses_population
from sparsemlp.sweeps.grid import Launcher, read_grid
from sparsemlp.sweeps.run_names import safe_name
from sparsemlp.sweeps.slurm import submit_sweep, tell_scripts
from sparsemlp.sweeps.sweep import tell_plan, train_sweep
from sparsemlp.sweeps.sweep_folder import SweepFolder


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Everything on the command line."""

    grid: tyro.conf.Positional[Path]
    """Grid file, YAML."""
    launcher: Annotated[str | None, open_default("local|slurm", "meta.run, or local")] = None
    """local: here, one run after another; slurm: one job a run or a
    population, with sbatch."""
    out: Annotated[Path | None, open_default("FOLDER", "sweeps/GRID")] = None
    """Folder of the sweep, made with its parents."""
    population: str = "auto"
    """Train runs that differ in ratio, backward mode or seed alone together, in one program with
    the engine reference: on, off, or auto (where it is faster: on a GPU)."""
    retry_failed: tyro.conf.FlagCreatePairsOff[bool] = False
    """Try runs that failed again, from their last checkpoints."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Say what would be done, with slurm also the scripts; change nothing."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code."""
    return exit_code(
        lambda: _run(cli(Arguments, args=arguments, description=__doc__)),
        stopped="the same command goes on from the last checkpoint",
    )


def _run(arguments: Arguments) -> int:
    launcher = arguments.launcher
    if launcher is not None:
        launcher = require_known(f"--launcher={launcher}", launcher, get_args(Launcher))
    grid = read_grid(arguments.grid, launcher)
    folder = SweepFolder(arguments.out or Path("sweeps") / safe_name(arguments.grid.stem))
    on_cluster = (launcher or grid.launcher or "local") == "slurm"
    retry_failed, population = arguments.retry_failed, arguments.population
    chooses_population(population)
    if arguments.dry_run:
        sweep = tell_plan(grid, folder, retry_failed=retry_failed, population=population)
        if on_cluster:
            tell_scripts(grid, folder, sweep, retry_failed=retry_failed, population=population)
        return 0
    launch = submit_sweep if on_cluster else train_sweep
    return launch(grid, folder, retry_failed=retry_failed, population=population)


if __name__ == "__main__":
    sys.exit(main())
