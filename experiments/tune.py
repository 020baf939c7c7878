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

import dataclasses
import math
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import jax
from rich.console import Console
from tuning.candidates import plain
from tuning.kernel_problems import (
    KERNELS,
    LAST,
    PAIRS,
    PRODUCTS,
    gpu_engines,
    is_able,
    problem_of,
)
from tuning.table import TuningTable, line_of
from tuning.tasks import Effort, Task, add_entry, add_in_workers, at_work_of, code_of
from tuning.tuned_layers import tuned_layer
from tuning.watch import ENDED, ended_by_sigterm
from tuning.workers import environment_with, usual_workers

from pallas_kernels import Engine, SparseLayer
from pallas_kernels.precision import in_tf32
from pallas_kernels.tuning import TABLES, table_file
from sparsemlp import InputError, parse_block
from sparsemlp.blocks import parse_shape
from sparsemlp.exit_codes import exit_code
from sparsemlp.files import make_folder
from sparsemlp.options import cli, open_default
from sparsemlp.runs.environment import describe_environment

_SHAPES = (
    *("384x1536", "1536x384", "768x3072", "3072x768", "1024x4096", "4096x16384"),
    *("64x256", "256x64"),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """What is tuned, and where the table is."""

    engine: Annotated[tuple[str, ...], open_default("NAME ...", "every engine for GPUs")] = ()
    """Engines to tune."""
    kernel: tuple[str, ...] = (*PRODUCTS, *PAIRS)
    """Kernels: product, input_gradient, kernel_gradient, mlp, mlp_gradients; compact_gradient (its
    block is that of the activation), pruned_input_gradient (its block 2x4 keeps 2 of 4
    neighbours)."""
    shape: tuple[str, ...] = _SHAPES
    """Inputs and outputs of the layers, INxOUT."""
    block: tuple[str, ...] = ("32x32", "64x64", "128x128")
    """Blocks of the mask, ROWSxCOLS."""
    ratio: tuple[float, ...] = (0.8, 0.5, 0.9)
    """Fractions of blocks to drop."""
    rows: tuple[int, ...] = (8192, 32768)
    """Rows of x."""
    dtype: tuple[str, ...] = ("bfloat16", "float32")
    """Dtypes of the operands."""
    tokens: bool = False
    """Contract the tokens (axis -2)."""
    rounds: int = 5
    """Turns of each configuration; their medians are compared."""
    candidates: int = 40
    """Configurations of a kernel to try: half in the order of the engine, half at random."""
    minutes: float = 8.0
    """When to stop, after the layer at hand; a new call goes on from there."""
    again: bool = False
    """Measure again what the table holds of other code of the kernels: after they have changed."""
    workers: int = 0
    """Processes; 0 is half as many as there are cores, at most 8; 1 is this one alone."""
    interpret: bool = False
    """Try the program without a GPU: kernels are interpreted, and nothing is measured."""
    out: Annotated[Path | None, open_default("FILE.json", "the table of this kind of GPU")] = None
    """The table."""


TINY = Options(
    shape=("64x128", "128x64"),
    block=("32x32",),
    ratio=(0.5,),
    rows=(64,),
    rounds=1,
    candidates=2,
    workers=1,
    interpret=True,
)
"""What is interpreted by default: the published models' layers would take hours."""


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
    _check(options)
    began, layers = time.monotonic(), _layers(options)
    engines = gpu_engines(options.interpret)
    environment = describe_environment()
    unknown = set(options.engine) - set(engines)
    if unknown:
        raise InputError(f"--engine={unknown.pop()} is none of {', '.join(engines)}")
    path = options.out or table_file(environment["device"])
    table = TuningTable(path, environment, is_measured=not options.interpret)
    make_folder(path.parent, f"--out={path}" if options.out else str(path.parent))
    for index in (None, *range(n_workers)):
        if left := at_work_of(path, index).died_again():
            table.write_down(*left, ENDED)
    asked = [
        Task(name, kernel, layer, n_rows)
        for names in _in_turn(options.engine or engines)
        for layer, kernel, n_rows in layers
        for name in names
    ]
    ends = began + 60 * options.minutes
    codes = {name: code_of(engine) if options.again else None for name, engine in engines.items()}
    missing = _missing(dict.fromkeys(asked), engines, table, codes, ends)
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
    _tell_where(table, environment["device"])


def _in_turn(engines: Collection[str]) -> list[list[str]]:
    """Which engines are tuned together, one group after the other."""
    groups = [name for name in engines if name not in LAST], [e for e in engines if e in LAST]
    return [group for group in groups if group]


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
        is_there = table.has(plain(problem), codes[task.engine])
        if is_there or not is_able(engine, task.kernel, task.layer):
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


def _layers(options: Options) -> list[tuple[SparseLayer, str, int]]:
    """What is tuned, the first choice of each option first."""
    axis = -2 if options.tokens else -1
    found = []
    for dtype in options.dtype:
        for ratio in options.ratio:
            for n_rows in options.rows:
                for shape in map(parse_shape, options.shape):
                    for block in map(parse_block, options.block):
                        for kernel in options.kernel:
                            layer = tuned_layer(kernel, shape, block, ratio, n_rows, dtype, axis)
                            if layer is not None:
                                found.append((layer, kernel, n_rows))
    return found


def _check(options: Options) -> None:
    if options.rounds < 1 or options.candidates < 1 or options.workers < 0:
        raise InputError("--rounds and --candidates must be at least 1, and --workers at least 0")
    if not 0 <= options.minutes < math.inf:
        raise InputError(f"--minutes={options.minutes:g} must be a finite number, at least 0")
    if any(n_rows < 1 for n_rows in options.rows):
        raise InputError(f"--rows={min(options.rows)} is too small: it must be at least 1")
    for dtype in options.dtype:
        if dtype not in ("bfloat16", "float32"):
            raise InputError(f"--dtype={dtype} is unknown: choose bfloat16 or float32")
    for shape in options.shape:
        parse_shape(shape)
    for kernel in options.kernel:
        if kernel not in KERNELS:
            raise InputError(f"--kernel={kernel} is none of {', '.join(KERNELS)}")
    if options.interpret:
        if options.out is None or options.out.absolute().is_relative_to(TABLES):
            raise InputError(
                f"--interpret measures nothing: give --out=FILE.json outside of {TABLES}"
            )
    elif jax.default_backend() != "gpu":
        raise InputError(
            f"there is no GPU to tune for, JAX runs on {jax.default_backend()!r}: pip install -e "
            "'.[cuda13]' on a machine that has one, or try the program with --interpret"
        )
    elif not in_tf32():
        raise InputError(
            "tables say how fast float32 is in TF32, and jax_default_matmul_precision is "
            f"{jax.config.jax_default_matmul_precision!r}: leave it as it is by default"
        )


if __name__ == "__main__":
    sys.exit(main())
