"""The products of one layer on a GPU: dense by XLA, masked by XLA, and by each engine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from tuning.candidates import plain
from tuning.device_timing import (
    WARM_SECONDS,
    Ceilings,
    Timed,
    compile_loops,
    repetitions,
    time_loops,
)
from tuning.kernel_problems import kept_blocks, random_rows
from tuning.watch import Guard, unguarded

from gpu.points import (
    PHASES,
    Phase,
    Point,
    engine_takes,
    memory_bytes,
    n_bytes,
    n_flops,
    roofline_seconds,
)
from pallas_kernels import Engine, Reference, dense
from pallas_kernels.lists import ids_of, list_columns, list_rows
from sparsemlp.files import Record


def measure_point(
    point: Point,
    engines: Mapping[str, Engine],
    ceilings: Ceilings,
    memory_limit: int | None,
    *,
    rounds: int = 5,
    is_tiny: bool = False,
    guard: Guard = unguarded,
) -> Record:
    """Times every phase of a point by every contender, in turns.

    Args:
      point: the layer.
      engines: GPU engines by name.
      ceilings: what the device reached.
      memory_limit: bytes that the device has; None if nobody knows.
      rounds: turns of each.
      is_tiny: whether this tries the program only.
      guard: what watches over the contenders, under their names.

    Returns:
      A record: for each phase and contender the time, TFLOP/s, GB/s and share of the roofline.

    Raises:
      WorkLostError: the contender that it names broke the device.
    """
    able = {name: e for name, e in engines.items() if engine_takes(point, e) is None}
    if not point.ratio:
        able = {}
    contenders = 2 + len(able)
    needed = memory_bytes(point, contenders)
    record: Record = {"key": str(point), "point": plain(point), "phases": {}, "failed": {}}
    if memory_limit is not None and needed > 0.9 * memory_limit:
        record["failed"]["all"] = f"needs {needed / 1e9:.1f} GB of {memory_limit / 1e9:.1f}"
        return record
    layer = point.layer
    n_in, n_out = point.shape
    x, dy = (random_rows(layer, point.n_rows, n, seed) for seed, n in enumerate((n_in, n_out)))
    dtype = jnp.dtype(point.dtype)
    w = jax.random.normal(jax.random.key(2), point.shape, dtype) / jnp.asarray(n_in**0.5, dtype)
    operands = (x, w, jnp.ones(n_out, dtype), dy, kept_blocks(layer))
    for phase in PHASES:
        expected_seconds = roofline_seconds(
            point, phase, True, ceilings.bytes_per_second, ceilings.flops[point.dtype]
        )
        n_times = 2 if is_tiny else repetitions(expected_seconds)
        functions: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
            "dense": (_dense(phase), operands)
        }
        if point.ratio:
            functions["masked by XLA"] = (_engine(Reference(), layer, phase), operands)
        for name, engine in able.items():
            functions[name] = (_engine(engine, layer, phase), operands)
        if phase == "forward" and point.ratio:
            functions["metadata"] = (_metadata(point), operands)
        if phase == "forward":
            functions["loop"] = (_next_to_nothing, operands)
        loops = compile_loops(functions, n_times)
        warm_seconds = 0.0 if is_tiny else WARM_SECONDS
        timed, failed = time_loops(loops, n_times, rounds, warm_seconds, guard)
        record["phases"][phase] = {
            name: numbers_of(point, phase, name, found, ceilings) for name, found in timed.items()
        }
        record["failed"] |= {f"{name} {phase}": reason for name, reason in failed.items()}
    return record


def latest(records: Sequence[Record]) -> list[Record]:
    """The last record of each point, in the order of the first ones."""
    return list({record["key"]: record for record in records}.values())


def point_of(record: Record) -> Point:
    """The point that `plain` wrote."""
    block, shape = ((first, second) for first, second in (record["block"], record["shape"]))
    return Point(shape, block, record["ratio"], record["n_rows"], record["dtype"])


def numbers_of(point: Point, phase: Phase, name: str, found: Timed, ceilings: Ceilings) -> Record:
    """Time and what it means; of the metadata and of the loop the time alone.

    Rates count what a contender has to do: the arithmetic and the bytes of kept weights for an
    engine, of all weights for XLA. The roofline is that of the same work.
    """
    record: Record = {"microseconds": 1e6 * found.median}
    record["quartiles"] = [1e6 * found.low, 1e6 * found.high]
    if name in ("metadata", "loop"):
        return record
    is_dense = name in ("dense", "masked by XLA")
    roof = roofline_seconds(
        point, phase, is_dense, ceilings.bytes_per_second, ceilings.flops[point.dtype]
    )
    flops, n_moved = n_flops(point, phase, is_dense), n_bytes(point, phase, is_dense)
    return record | {
        "tflops": flops / found.median / 1e12,
        "gigabytes_per_second": n_moved / found.median / 1e9,
        "flops_per_byte": flops / n_moved,
        "share_of_roofline": roof / found.median,
    }


def _dense(phase: Phase) -> Callable[..., Any]:
    def run(x: Any, w: Any, b: Any, dy: Any, kept: Any) -> Any:
        y = dense.product(x, w, b, -1) if phase in ("forward", "forward_backward") else None
        if phase == "forward":
            return y
        dx = dense.input_gradient(dy, w, -1) if phase != "kernel_gradient" else None
        if phase == "input_gradient":
            return dx
        dw = dense.kernel_gradient(x, dy, -1)
        return dw if phase == "kernel_gradient" else (y, dx, dw, dense.bias_gradient(dy, -1))

    return run


def _engine(engine: Engine, layer: Any, phase: Phase) -> Callable[..., Any]:
    def run(x: Any, w: Any, b: Any, dy: Any, kept: Any) -> Any:
        match phase:
            case "forward":
                return engine.product(x, w, b, engine.taken(kept), layer)
            case "input_gradient":
                return engine.input_gradient(dy, w, engine.taken(kept), layer)
            case "kernel_gradient":
                return engine.kernel_gradient(x, dy, engine.taken(kept), layer)
            case "forward_backward":
                kept = engine.taken(kept)
                y = engine.product(x, w, b, kept, layer)
                dx = engine.input_gradient(dy, w, kept, layer)
                return y, dx, *engine.parameter_gradients(x, dy, kept, layer)

    return run


def _next_to_nothing(x: Any, w: Any, b: Any, dy: Any, kept: Any) -> Any:
    """One small kernel: what is left is what the loop around all contenders costs."""
    return b + 1


def _metadata(point: Point) -> Callable[..., Any]:
    """What kernels need to know of the kept blocks: they, row by row and column by column.

    A training step makes it once for all layers that are alike; engines are timed without it.
    """
    (n_in, n_out), (rows, cols) = point.shape, point.block
    grid = (n_in // cols, n_out // rows)

    def run(x: Any, w: Any, b: Any, dy: Any, kept: Any) -> Any:
        ids = ids_of(kept)
        return list_rows(ids, grid), list_columns(ids, grid)

    return run
