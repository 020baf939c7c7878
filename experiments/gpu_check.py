"""Compares one engine with the reference on the device at hand, in a process of its own.

    python experiments/gpu_check.py --engine=mosaic --out DIR/correctness.jsonl

A kernel that faults takes its process along, and one that waits for ever would stop everything: the
GPU benchmark starts this program for each engine, with a limit. Comparisons that the file holds are
not made again.
"""

import concurrent.futures
import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from gpu_points import Point, engine_takes, tiny_points
from kernel_check import Wanted, expected, reason_wrong
from kernel_problems import Work, gpu_engines, is_able, work_of

from pallas_kernels import Engine
from sparsemlp import InputError
from sparsemlp.errors import SaveError
from sparsemlp.files import Record
from sparsemlp.history import History
from sparsemlp.options import cli

_KERNELS = ("product", "input_gradient", "kernel_gradient", "mlp")
_N_COMPILERS = 8


@dataclasses.dataclass(frozen=True)
class Options:
    """Which engine, and where the records go."""

    engine: str
    """Name of the engine."""
    out: Path
    """File of records, a line a comparison."""
    smoke: bool = False
    """Try the program without a GPU: tiny shapes, interpreted kernels."""


def main() -> int:
    """Makes the comparisons that the file does not hold yet."""
    options = cli(Options, description=__doc__)
    try:
        engines = gpu_engines(options.smoke)
        if options.engine not in engines:
            raise InputError(f"--engine={options.engine} is none of {', '.join(engines)}")
        history = History(options.out)
        done = {record["key"] for record in history.read()}
        engine = {options.engine: engines[options.engine]}
        for record in check_engines(engine, check_points(options.smoke), done):
            history.append(record | {"measured": not options.smoke})
    except (InputError, SaveError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def check_points(is_tiny: bool) -> list[Point]:
    """Layers on which an engine has to be right before it is timed; rows are ragged.

    Those of the timed points come in as well: their panels are cut into pieces, which are other
    paths of a kernel.
    """
    if is_tiny:
        return tiny_points()[:1]
    return [
        Point(shape, (side, side), ratio, 300, dtype)
        for shape, ratio in (((256, 512), 0.5), ((1024, 4096), 0.8))
        for side in (32, 64, 128)
        for dtype in ("bfloat16", "float32")
    ]


def check_keys(name: str, engine: Engine, points: list[Point]) -> list[str]:
    """The keys of all comparisons of an engine; points that it cannot compute are left out."""
    keys = [_key(name, engine, kernel, point) for point in points for kernel in _KERNELS]
    return [key for key in keys if key is not None]


def check_engines(
    engines: Mapping[str, Engine], points: list[Point], done: Collection[str] = ()
) -> Iterator[Record]:
    """Computes small products by every engine on this device and compares them.

    Args:
      engines: by name.
      points: layers.
      done: keys of comparisons that are left out.

    Yields:
      A record for each of `check_keys`, `wrong` empty if it is right.
    """
    asked = [
        (point, kernel, keys)
        for point in points
        for kernel in _KERNELS
        if (keys := _keys_of(engines, point, kernel, done))
    ]

    def prepare(one: tuple[Point, str, dict[str, str]]) -> tuple[Work, Wanted, dict[str, Any]]:
        point, kernel, keys = one
        work = work_of(kernel, point.layer, point.n_rows)
        compiled = {name: _compiled(work, engines[name]) for name in keys}
        return work, expected(work), compiled

    with concurrent.futures.ThreadPoolExecutor(_N_COMPILERS) as pool:
        for (point, _, keys), prepared in zip(asked, pool.map(prepare, asked), strict=True):
            work, wanted, compiled = prepared
            for name, key in keys.items():
                wrong = _reason_against(compiled[name], work, wanted, point.dtype)
                yield {"key": key, "engine": name, "wrong": wrong}


def _keys_of(
    engines: Mapping[str, Engine], point: Point, kernel: str, done: Collection[str]
) -> dict[str, str]:
    """By engine, the key of the comparison of a kernel, if there is one to make."""
    keys = {name: _key(name, engine, kernel, point) for name, engine in engines.items()}
    return {name: key for name, key in keys.items() if key is not None and key not in done}


def _key(name: str, engine: Engine, kernel: str, point: Point) -> str | None:
    able = engine_takes(point, engine) is None and is_able(engine, kernel, point.layer)
    return f"{name} {kernel} {point}" if able else None


def _compiled(work: Work, engine: Engine) -> Any:
    """The kernel as a program; the error if it does not compile."""
    try:
        return jax.jit(work.sparse(engine)).lower(*work.operands).compile()
    except Exception as error:
        return error


def _reason_against(compiled: Any, work: Work, wanted: Wanted, dtype: str) -> str:
    try:
        if isinstance(compiled, Exception):
            raise compiled
        return reason_wrong(compiled(*work.operands), wanted, dtype, work)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"


if __name__ == "__main__":
    sys.exit(main())
