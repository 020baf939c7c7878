"""Compares one engine with the reference on the device at hand, in a process of its own.

    PYTHONPATH=experiments python -m gpu.check --engine=mosaic --out DIR/correctness.jsonl

A kernel that faults takes its process along, and one that waits for ever ends it: the GPU benchmark
starts this program for each engine, again where it ended early. Several processes may share the
comparisons of an engine. Those that the file holds are not made again.
"""

import concurrent.futures
import dataclasses
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from tuning.device_lock import Lock, device_lock, file_lock, unlocked
from tuning.kernel_check import compare, compiled, expected_by
from tuning.kernel_problems import COMPARED, gpu_engines, is_able, planned_work
from tuning.watch import (
    AtWork,
    Guard,
    WorkLostError,
    guard_for,
    reason_of,
    require_device,
    unguarded,
)
from tuning.work import Work

from gpu.points import Point, engine_takes, tiny_points
from pallas_kernels import Engine
from sparsemlp import InputError
from sparsemlp.blocks import format_block
from sparsemlp.exit_codes import exit_code
from sparsemlp.files import Record
from sparsemlp.options import cli
from sparsemlp.runs.history import History

_N_COMPILERS = 4
_CHECKED = (
    ((256, 512), 0.5, 300, (64, 128, 32)),
    ((1024, 4096), 0.8, 8190, (64, 128, 32)),
    ((384, 1536), 0.8, 8190, (64, 32)),
    ((384, 1536), 0.9, 16380, (64,)),
    ((512, 1024), 0.8, 4100, (64,)),
    ((512, 1024), 0.8, 32764, (128,)),
    ((1024, 1024), 0.9, 4100, (128,)),
    ((4096, 16384), 0.5, 4100, (128,)),
    ((256, 512), 0.9, 32764, (32,)),
    ((4096, 16384), 0.9, 4100, (32,)),
)
"""Inputs and outputs, ratio, rows and sides of the blocks of what is compared."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Which engine, and where the records go."""

    engine: str
    """Name of the engine."""
    out: Path
    """File of records, a line a comparison."""
    share: int = 0
    """Which share of the comparisons."""
    shares: int = 1
    """How many shares there are."""
    smoke: bool = False
    """Try the program without a GPU: tiny shapes, interpreted kernels."""


def main() -> int:
    """Makes the comparisons that the file does not hold yet."""
    return exit_code(lambda: check(cli(Options, description=__doc__)))


def check(options: Options) -> None:
    """Makes the comparisons of the engine that the options name.

    Raises:
      InputError: there is no such engine.
      WorkLostError: as `add_comparisons`.
    """
    engines = gpu_engines(options.smoke)
    if options.engine not in engines:
        raise InputError(f"--engine={options.engine} is none of {', '.join(engines)}")
    add_comparisons(options, engines[options.engine])


def add_comparisons(options: Options, engine: Engine) -> None:
    """Adds the comparisons that the file lacks, one by one.

    Raises:
      WorkLostError: the device does not answer after the last one.
    """
    history, points = History(options.out), check_points(options.smoke)
    known = comparisons(options.engine, engine, points)

    def write_down(key: str, reason: str) -> None:
        with writing(options.out)():
            history.append(
                {"key": key, **known[key], "wrong": reason, "measured": not options.smoke}
            )

    at_work = at_work_of(options.out, options.engine, options.share)
    guard = guard_for(write_down, at_work, options.engine, is_trial=options.smoke)
    done = {record["key"] for record in history.read()}
    others = set(known) - set(share_of(known, options.share, options.shares))
    lock = device_lock(is_trial=options.smoke)
    for record in check_engines({options.engine: engine}, points, done | others, guard, lock):
        write_down(record["key"], record["wrong"])


def share_of(keys: Iterable[str], share: int, shares: int) -> list[str]:
    """The keys of comparisons that one of so many processes makes."""
    return list(keys)[share::shares]


def writing(out: Path) -> Lock:
    """The lock of those who write into a file of records."""
    return file_lock(out.with_suffix(".lock"))


def at_work_of(out: Path, engine: str, share: int = 0) -> AtWork:
    """What a process is comparing for a file of records."""
    return AtWork(out.with_suffix(f".{engine}.{share}.at_work"))


def check_points(is_tiny: bool) -> list[Point]:
    """Layers on which an engine has to be right before it is timed, bfloat16 first.

    Rows are ragged, few or nearly as many as are timed: how a kernel is cut, and so which of its
    paths are taken, depends on layer, ratio and rows. Every way that is timed is among them: how
    many warpgroups multiply how many columns abreast, which programs load together, whether a
    panel is in pieces, how many blocks of a gradient are computed together, of a row or a column,
    and whether its programs have equal shares. There are few more than that takes, as a kind of
    layer is timed only once all of its comparisons are made.
    """
    if is_tiny:
        return tiny_points()[:1]
    return [
        Point(shape, (side, side), ratio, n_rows, dtype)
        for dtype in ("bfloat16", "float32")
        for shape, ratio, n_rows, sides in _CHECKED
        for side in sides
    ]


def comparisons(name: str, engine: Engine, points: list[Point]) -> dict[str, Record]:
    """What is compared of an engine, by key: engine, kernel, block and dtype.

    Points that the engine cannot compute are left out.
    """
    return {
        key: {
            "engine": name,
            "kernel": kernel,
            "block": format_block(point.block),
            "dtype": point.dtype,
        }
        for point in points
        for kernel in COMPARED
        if (key := _key(name, engine, kernel, point)) is not None
    }


def check_engines(
    engines: Mapping[str, Engine],
    points: list[Point],
    done: Collection[str] = (),
    guard: Guard = unguarded,
    lock: Lock = unlocked,
) -> Iterator[Record]:
    """Computes small products by every engine on this device and compares them.

    Args:
      engines: by name.
      points: layers.
      done: keys of comparisons that are left out.
      guard: what watches over them, under their keys.
      lock: held while the device is needed, not while kernels are compiled.

    Yields:
      A record for each of `comparisons`: its key, and `wrong`, empty if it is right.

    Raises:
      WorkLostError: the device does not answer after the comparison yielded last.
    """
    # A precision that is set for a thread is not that of others.
    precision = jax.config.jax_default_matmul_precision
    asked = [
        (point, kernel, keys)
        for point in points
        for kernel in COMPARED
        if (keys := _keys_of(engines, point, kernel, done))
    ]

    def prepare(one: tuple[Point, str, dict[str, str]]) -> tuple[Work, Any, Any, dict[str, Any]]:
        point, kernel, keys = one
        with jax.default_matmul_precision(precision):
            work, make_operands = planned_work(kernel, point.layer, point.n_rows)
            programs = {name: compiled(work.sparse(engines[name]), work.operands) for name in keys}
            return work, make_operands, expected_by(work), programs

    def make(one: tuple[Point, str, dict[str, str]], prepared: Any) -> list[Any]:
        """The records; in the place of the last one, an error after which the device is lost."""
        (point, _, keys), (work, make_operands, find_wanted, programs) = one, prepared
        records = []
        with lock():
            work = work._replace(operands=make_operands())
            wanted = find_wanted(*work.operands)
            for name, key in keys.items():
                try:
                    with guard(key):
                        wrong = compare(programs[name], work, wanted, point.dtype)
                    records.append({"key": key, "wrong": wrong})
                except Exception as error:
                    records.append({"key": key, "wrong": reason_of(error)})
                    try:
                        require_device(key, error)
                    except WorkLostError as lost:
                        return [*records, lost]
        return records

    with concurrent.futures.ThreadPoolExecutor(_N_COMPILERS) as pool:
        for one, prepared in zip(asked, pool.map(prepare, asked), strict=True):
            for record in make(one, prepared):
                if isinstance(record, WorkLostError):
                    raise record
                yield record


def _keys_of(
    engines: Mapping[str, Engine], point: Point, kernel: str, done: Collection[str]
) -> dict[str, str]:
    """By engine, the key of the comparison of a kernel, if there is one to make."""
    keys = {name: _key(name, engine, kernel, point) for name, engine in engines.items()}
    return {name: key for name, key in keys.items() if key is not None and key not in done}


def _key(name: str, engine: Engine, kernel: str, point: Point) -> str | None:
    able = engine_takes(point, engine) is None and is_able(engine, kernel, point.layer)
    return f"{name} {kernel} {point}" if able else None


if __name__ == "__main__":
    sys.exit(main())
