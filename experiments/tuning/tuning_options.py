"""What is tuned: the options of `tune.py`, their rules, and the tasks that they name."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated

import jax

from pallas_kernels import Engine, SparseLayer
from pallas_kernels.device_table import TABLES
from pallas_kernels.precision import in_tf32
from sparsemlp import InputError, parse_block
from sparsemlp.blocks import parse_shape
from sparsemlp.options import open_default
from tuning.kernel_problems import KERNELS, LAST, PAIRS, PRODUCTS, is_able
from tuning.tasks import Task
from tuning.tuned_layers import tuned_layer

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
    neighbours); convolution, convolution_input_gradient, convolution_gradients (of 3x3 kernels)."""
    shape: tuple[str, ...] = _SHAPES
    """Inputs and outputs of the layers, INxOUT; channels of convolutions."""
    block: tuple[str, ...] = ("32x32", "64x64", "128x128")
    """Blocks of the mask, ROWSxCOLS."""
    ratio: tuple[float, ...] = (0.8, 0.5, 0.9)
    """Fractions of blocks to drop."""
    rows: tuple[int, ...] = (8192, 32768)
    """Rows of x; pixels of convolutions."""
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


def check(options: Options) -> None:
    """Raises InputError where the options cannot be tuned, or there is no GPU to tune for."""
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


def tasks_of(options: Options, engines: Mapping[str, Engine]) -> list[Task]:
    """What the options name and an engine can compute, the first choice of each option first.

    Raises:
      InputError: there is nothing of that kind.
    """
    layers = _layers(options)
    named = [
        Task(name, kernel, layer, n_rows)
        for names in _in_turn(options.engine or engines)
        for layer, kernel, n_rows in layers
        for name in names
    ]
    able = [task for task in named if is_able(engines[task.engine], task.kernel, task.layer)]
    if able:
        return list(dict.fromkeys(able))
    if not named:
        raise InputError(
            "there is nothing to tune: --shape, --block, --ratio, --rows, --dtype and --kernel "
            "have to name a layer, and a block that divides it"
        )
    first = named[0]
    reason = engines[first.engine].reason_against(first.layer, "gpu")
    raise InputError(
        f"there is nothing to tune: no engine computes what is named, {first} for one"
        f"{f' ({reason})' if reason else ''}"
    )


def _in_turn(engines: Collection[str]) -> list[list[str]]:
    """Which engines are tuned together, one group after the other."""
    groups = [name for name in engines if name not in LAST], [e for e in engines if e in LAST]
    return [group for group in groups if group]


def _layers(options: Options) -> list[tuple[SparseLayer, str, int]]:
    """Layers, kernels and rows, the first choice of each option first."""
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
