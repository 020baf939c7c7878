"""The products of one layer on a GPU: dense by XLA, masked by XLA, and by each engine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from tuning.candidates import plain
from tuning.ceilings import Ceilings
from tuning.compiled_loops import Loop, compile_loops, repetitions
from tuning.device_lock import Lock, unlocked
from tuning.device_timing import WARM_SECONDS, Timed, time_loops
from tuning.kernel_problems import random_rows
from tuning.watch import Guard, unguarded
from tuning.work import kept_blocks

from gpu.points import (
    PHASES,
    Phase,
    Point,
    all_points,
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
    lock: Lock = unlocked,
    n_threads: int = 8,
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
      lock: held while the device is needed: not while kernels are compiled, but while XLA tries its
        products there.
      n_threads: how many programs are compiled at a time.

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
    lowered = jax.jit(lambda: _operands(point)).lower()
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), lowered.out_info)
    make_operands = lowered.compile()

    def n_times(phase: Phase) -> int:
        roof = (ceilings.bytes_per_second, ceilings.flops[point.dtype])
        return 1 if is_tiny else repetitions(roofline_seconds(point, phase, True, *roof))

    def compile_engines(phase: Phase) -> dict[str, Loop | str]:
        functions: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
            name: (engine_phase(engine, layer, phase), _given(shapes, phase))
            for name, engine in able.items()
        }
        if phase == "forward" and point.ratio:
            functions["metadata"] = (_metadata(point), (shapes["kept"],))
        if phase == "forward":
            functions["loop"] = (_next_to_nothing, (shapes["bias"],))
        return compile_loops(functions, n_times(phase), n_threads, single={"metadata"})

    compiled = {phase: compile_engines(phase) for phase in PHASES}
    with lock():
        operands = make_operands()
        for phase in PHASES:
            own = _given(operands, phase)
            functions = {"dense": (dense_phase(phase), (*own[:-1], None))}
            if point.ratio:
                functions["masked by XLA"] = (engine_phase(Reference(), layer, phase), own)
            loops = compile_loops(functions, n_times(phase), n_threads) | compiled.pop(phase)
            for name, loop in loops.items():
                if isinstance(loop, Loop):
                    of_it = {"metadata": (operands["kept"],), "loop": (operands["bias"],)}
                    loop.operands = of_it.get(name, loop.operands if name in functions else own)
            warm_seconds = 0.0 if is_tiny else WARM_SECONDS
            timed, failed = time_loops(loops, n_times(phase), rounds, warm_seconds, guard)
            for loop in loops.values():
                if isinstance(loop, Loop):
                    loop.forget()
            record["phases"][phase] = {
                name: numbers_of(point, phase, name, found, ceilings)
                for name, found in timed.items()
            }
            record["failed"] |= {f"{name} {phase}": reason for name, reason in failed.items()}
    return record


def _operands(point: Point) -> dict[str, Any]:
    layer, dtype, (n_in, n_out) = point.layer, jnp.dtype(point.dtype), point.shape
    x, dy = (random_rows(layer, point.n_rows, n, seed) for seed, n in enumerate((n_in, n_out)))
    w = jax.random.normal(jax.random.key(2), point.shape, dtype) / jnp.asarray(n_in**0.5, dtype)
    return {"x": x, "dy": dy, "w": w, "bias": jnp.ones(n_out, dtype), "kept": kept_blocks(layer)}


def _given(operands: Record, phase: Phase) -> tuple[Any, ...]:
    """What the functions of a phase take; first what all but Y depends on."""
    names = {
        "forward": ("x", "w", "bias", "kept"),
        "input_gradient": ("dy", "w", "kept"),
        "kernel_gradient": ("x", "dy", "kept"),
        "forward_backward": ("dy", "x", "w", "bias", "kept"),
    }
    return tuple(operands[name] for name in names[phase])


def latest(records: Sequence[Record]) -> list[Record]:
    """The last record of each point, the most telling first."""
    order = {str(point): place for place, point in enumerate(all_points())}
    last = {record["key"]: record for record in records}
    return sorted(last.values(), key=lambda record: order.get(record["key"], len(order)))


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


def dense_phase(phase: Phase) -> Callable[..., Any]:
    """XLA's, given the same."""

    def both(dy: Any, x: Any, w: Any, b: Any, kept: Any) -> Any:
        dx, dw = dense.input_gradient(dy, w, -1), dense.kernel_gradient(x, dy, -1)
        return dense.product(x, w, b, -1), dx, dw, dense.bias_gradient(dy, -1)

    functions: dict[Phase, Callable[..., Any]] = {
        "forward": lambda x, w, b, kept: dense.product(x, w, b, -1),
        "input_gradient": lambda dy, w, kept: dense.input_gradient(dy, w, -1),
        "kernel_gradient": lambda x, dy, kept: dense.kernel_gradient(x, dy, -1),
        "forward_backward": both,
    }
    return functions[phase]


def engine_phase(engine: Engine, layer: Any, phase: Phase) -> Callable[..., Any]:
    """An engine's part of a layer, given what it needs."""
    taken = engine.taken

    def both(dy: Any, x: Any, w: Any, b: Any, kept: Any) -> Any:
        kept = taken(kept)
        y = engine.product(x, w, b, kept, layer)
        dx = engine.input_gradient(dy, w, kept, layer)
        return y, dx, *engine.parameter_gradients(x, dy, kept, layer)

    functions: dict[Phase, Callable[..., Any]] = {
        "forward": lambda x, w, b, kept: engine.product(x, w, b, taken(kept), layer),
        "input_gradient": lambda dy, w, kept: engine.input_gradient(dy, w, taken(kept), layer),
        "kernel_gradient": lambda x, dy, kept: engine.kernel_gradient(x, dy, taken(kept), layer),
        "forward_backward": both,
    }
    return functions[phase]


def _next_to_nothing(b: Any) -> Any:
    """One small kernel: what is left is what a repetition of any contender costs by itself."""
    return b + 1


def _metadata(point: Point) -> Callable[..., Any]:
    """What kernels need to know of the kept blocks: they, row by row and column by column.

    A training step makes it once for all layers that are alike; engines are timed without it.
    """
    (n_in, n_out), (rows, cols) = point.shape, point.block
    grid = (n_in // cols, n_out // rows)

    def run(kept: Any) -> Any:
        ids = ids_of(kept)
        return list_rows(ids, grid), list_columns(ids, grid)

    return run
