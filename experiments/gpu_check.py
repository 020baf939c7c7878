"""Compares one engine with the reference on the device at hand, in a process of its own.

    python experiments/gpu_check.py --engine=mosaic --out DIR/correctness.jsonl

A kernel that faults takes its process along, and one that waits for ever would stop everything: the
GPU benchmark starts this program for each engine, with a limit. Comparisons that the file holds are
not made again.
"""

import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import jax
import tyro
from gpu_points import Point, engine_takes, tiny_points
from kernel_problems import expected, gpu_engines, reason_wrong, work_of

from pallas_kernels import Engine
from sparsemlp import InputError
from sparsemlp.errors import SaveError
from sparsemlp.files import Record
from sparsemlp.history import History

_KERNELS = ("product", "input_gradient", "kernel_gradient")


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
    options = tyro.cli(Options, description=__doc__)
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
    """Small layers on which an engine has to be right before it is timed; rows are ragged."""
    if is_tiny:
        return tiny_points()[:1]
    return [
        Point((256, 512), (side, side), 0.5, 300, dtype)
        for side in (32, 64, 128)
        for dtype in ("bfloat16", "float32")
    ]


def check_keys(name: str, engine: Engine, points: list[Point]) -> list[str]:
    """The keys of all comparisons of an engine; points that it cannot compute are left out."""
    return [
        f"{name} {kernel} {point}"
        for point in points
        if engine_takes(point, engine) is None
        for kernel in _KERNELS
    ]


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
    for point in points:
        for kernel in _KERNELS:
            keys = {
                name: key
                for name, engine in engines.items()
                for key in check_keys(name, engine, [point])
                if key.startswith(f"{name} {kernel} ") and key not in done
            }
            if not keys:
                continue
            work = work_of(kernel, point.layer, point.n_rows)
            wanted = expected(work)
            for name, key in keys.items():
                try:
                    found = jax.jit(work.sparse(engines[name]))(*work.operands)
                    wrong = reason_wrong(found, wanted, point.dtype, work)
                except Exception as error:
                    wrong = f"{type(error).__name__}: {str(error)[:300]}"
                yield {"key": key, "engine": name, "wrong": wrong}


if __name__ == "__main__":
    sys.exit(main())
