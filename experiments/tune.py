"""Finds how each kernel is cut best on this GPU, and where it beats XLA, and writes it down.

    python experiments/tune.py

tries the configurations of every GPU engine on the layers of the published models, checks each
result against engine `reference`, times those that are right in turns with XLA's dense product, and
writes the table of this kind of GPU, `pallas_kernels/tables/DEVICE.json`: kernels look up how they
are cut there, and `--engine=auto` where they are taken. The table is written anew after each layer;
a run that was stopped goes on where it was. All that was timed is in `DEVICE.candidates.jsonl`
beside it, which no kernel reads. Most of the time goes into compiling, which several processes do
side by side; on the device they take turns. A configuration that never ends or breaks the device
ends its process, and is left out when the next one goes on.

    python experiments/tune.py --interpret --out=table.json

tries the program without a GPU, on tiny layers. What it writes is marked as no measurement.
"""

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from tuning.candidates import plain
from tuning.kernel_problems import gpu_engines, problem_of
from tuning.table import TuningTable, held, line_of
from tuning.tasks import Effort, Task, add_entry, add_in_workers, at_work_of, code_of
from tuning.tuning_options import TINY, Options, check, tasks_of
from tuning.watch import ENDED, ended_by_sigterm
from tuning.workers import environment_with, usual_workers

from pallas_kernels import Engine
from pallas_kernels.device_table import table_file
from sparsemlp import InputError
from sparsemlp.exit_codes import exit_code
from sparsemlp.files import check_writable, make_folder
from sparsemlp.options import cli
from sparsemlp.runs.environment import describe_environment


def main() -> int:
    """Tunes what the command line names, one problem after the other."""
    default = TINY if "--interpret" in sys.argv else Options()
    with ended_by_sigterm():
        return exit_code(
            lambda: tune(cli(Options, default=default, description=__doc__)),
            stopped="the same command goes on",
        )


def tune(options: Options) -> None:
    """Writes the table anew after each problem.

    Raises:
      InputError: an option that cannot be tuned, or there is no GPU.
      DeviceLostError: the device does not answer after a configuration, which is written down.
      SaveError: the table cannot be written.
    """
    n_workers = options.workers or usual_workers()
    # No process takes all memory of the device at once.
    with environment_with({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if n_workers > 1 else {}):
        _tune(options, n_workers)


def _tune(options: Options, n_workers: int) -> None:
    check(options)
    began = time.monotonic()
    engines = gpu_engines(options.interpret)
    environment = describe_environment()
    unknown = set(options.engine) - set(engines)
    if unknown:
        raise InputError(f"--engine={unknown.pop()} is none of {', '.join(engines)}")
    asked = tasks_of(options, engines)
    path = options.out or table_file(environment["device"])
    told = f"--out={path}" if options.out else str(path)
    make_folder(path.parent, told)
    check_writable(path, told)
    with held(path):
        table = TuningTable(path, environment, is_measured=not options.interpret, told=told)
        _fill(table, asked, engines, options, n_workers, began + 60 * options.minutes)
    _tell_where(table, environment["device"])


def _fill(
    table: TuningTable,
    asked: Sequence[Task],
    engines: Mapping[str, Engine],
    options: Options,
    n_workers: int,
    ends: float,
) -> None:
    """Measures what is asked for and the table lacks, until the time is over."""
    path = table.path
    for index in (None, *range(n_workers)):
        if left := at_work_of(path, index).died_again():
            table.write_down(*left, ENDED)
    codes = {name: code_of(engine) if options.again else None for name, engine in engines.items()}
    missing = _missing(asked, engines, table, codes, ends)
    effort = Effort(options.candidates, options.rounds, options.interpret)
    with Console(stderr=True).status("") as status:
        if n_workers == 1:
            for task in missing:
                status.update(str(task))
                print(line_of(add_entry(table, task, effort)), flush=True)
        else:
            add_in_workers(n_workers, missing, table, effort)
    if any(_missing(asked, engines, table, codes, math.inf)) and time.monotonic() > ends:
        print(f"--minutes={options.minutes:g} are over: the same command goes on")


def _missing(
    tasks: Iterable[Task],
    engines: Mapping[str, Engine],
    table: TuningTable,
    codes: Mapping[str, str | None],
    ends: float,
) -> Iterator[Task]:
    """Those that have no entry, of an engine's code if one is given, until the time is over."""
    for task in tasks:
        engine = engines[task.engine]
        problem = problem_of(engine, task.kernel, task.layer, task.n_rows)
        if table.has(plain(problem), codes[task.engine]):
            continue
        if task.kernel == "mlp_gradients" and not engine.configurations(problem):
            continue  # It is timed with `mlp`.
        if time.monotonic() > ends:
            return
        yield task


def _tell_where(table: TuningTable, device: str) -> None:
    """Says how long the table is, and whether `--engine=auto` reads it."""
    measured = "" if table.is_measured else " (interpreted: no measurement)"
    print(f"{table.n_entries} entries in {table.path}{measured}")
    read = table_file(device)
    if table.is_measured and table.path.absolute() != read:
        print(f"--engine=auto goes by {read} alone: copy it there")


if __name__ == "__main__":
    sys.exit(main())
