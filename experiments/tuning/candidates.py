"""Every way to cut a kernel: checked, timed beside XLA, and the fastest right one found."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

from pallas_kernels import Engine, SparseLayer
from pallas_kernels.device_table import Problem
from pallas_kernels.lists import ListedBlocks
from pallas_kernels.tuning import forced
from sparsemlp.files import Record
from tuning.compiled_loops import Loop, compile_loops, repetitions
from tuning.device_lock import Lock, unlocked
from tuning.device_timing import WARM_SECONDS, time_loops
from tuning.kernel_check import Wanted, expected_by, reason_wrong
from tuning.kernel_problems import planned_work
from tuning.watch import Guard, reason_of, require_device, unguarded
from tuning.work import Work

_USUAL_FLOPS = 2e14
"""Operations a second that a loop is laid out for: how long it runs, not what it reaches."""


def measure(
    engine: Engine,
    problem: Problem,
    layer: SparseLayer,
    *,
    n_candidates: int,
    rounds: int,
    is_interpreted: bool,
    broken: Mapping[str, str] = MappingProxyType({}),
    guard: Guard = unguarded,
    lock: Lock = unlocked,
    n_threads: int = 8,
) -> Record:
    """The entry of a problem: the fastest configuration that is right, and XLA beside it.

    Args:
      engine: the engine.
      problem: one of its problems.
      layer: the layer of the problem.
      n_candidates: how many configurations are tried, as `chosen`.
      rounds: turns of each.
      is_interpreted: whether the kernels are interpreted, and the times mean nothing.
      broken: why a configuration, by its `key_of`, or "dense", is not tried again.
      guard: what watches over the runs of a configuration, under its `key_of`.
      lock: held while the device is needed: not while configurations are compiled.
      n_threads: how many are compiled at a time.

    Returns:
      The entry, and beside it `timed`: configuration and microseconds of each that is right.

    Raises:
      WorkLostError: a configuration broke the device; its name is the `key_of`.
    """
    if "dense" in broken:
        return _without_time(problem, [{"configuration": {}, "reason": broken["dense"]}])
    work, make_operands = planned_work(problem.kernel, layer, problem.n_rows)
    find_wanted = expected_by(work)
    configurations = chosen(engine.configurations(problem), n_candidates)
    functions = {
        key_of(configuration): (cut(work.sparse(engine), configuration), work.operands)
        for configuration in configurations
        if key_of(configuration) not in broken
    }
    n_times = 1 if is_interpreted else _repetitions(layer, problem.n_rows)
    loops = compile_loops(functions, n_times, n_threads)
    with lock():
        try:
            operands = make_operands()
            wanted = jax.block_until_ready(find_wanted(*operands))
        except jax.errors.JaxRuntimeError as error:
            # As a rule its operands need more memory than there is.
            require_device("dense", error)
            return _without_time(problem, [{"configuration": {}, "reason": reason_of(error)}])
        # XLA tries its products on the device. What it computes is the same whatever is kept.
        bare = tuple(None if isinstance(a, ListedBlocks) else a for a in operands)
        loops |= compile_loops({"dense": (work.dense, bare)}, n_times)
        rejected: list[Record] = []
        right: dict[str, Any] = {}
        for configuration in configurations:
            key = key_of(configuration)
            if isinstance(loop := loops.get(key), Loop):
                loop.operands = operands
            reason = broken.get(key) or _reason_against(
                key, loops[key], work, wanted, layer.dtype, guard
            )
            if reason:
                rejected.append({"configuration": plain(configuration), "reason": reason})
            else:
                right[key] = configuration
        del wanted
        warm_seconds = 0.0 if is_interpreted else WARM_SECONDS
        contenders = {name: loops[name] for name in ("dense", *right)}
        timed, failed = time_loops(contenders, n_times, rounds, warm_seconds, guard)
        for loop in loops.values():
            if isinstance(loop, Loop):
                loop.forget()
    rejected += [
        {"configuration": plain(right.get(key)), "reason": reason} for key, reason in failed.items()
    ]
    names = [key for key in right if key in timed]
    if not names or "dense" not in timed:
        return _without_time(problem, rejected)
    microseconds = {name: 1e6 * found.median for name, found in timed.items()}
    best = min(names, key=lambda name: microseconds[name])
    return {
        "problem": plain(problem),
        "rejected": rejected,
        "configuration": plain(right[best]),
        "microseconds": microseconds[best],
        "dense_microseconds": microseconds["dense"],
        "heuristic_microseconds": microseconds.get(key_of(configurations[0])),
        "tried": len(configurations),
        "timed": [
            {"configuration": plain(right[name]), "microseconds": microseconds[name]}
            for name in names
        ],
    }


def chosen(space: Sequence[Any], n: int) -> list[Any]:
    """Which configurations are tried: half in the engine's order, half drawn from the others.

    An engine that expects something of its configurations names the best first; what it expects may
    be wrong. Where there is no choice: None.
    """
    first, others = space[: -(-n // 2)], space[-(-n // 2) :]
    drawn = random.Random(0).sample(others, min(len(others), n - len(first)))
    return [*first, *drawn] or [None]


def _without_time(problem: Problem, rejected: list[Record]) -> Record:
    times = dict.fromkeys(("microseconds", "dense_microseconds"))
    return {"problem": plain(problem), "rejected": rejected, "configuration": {}, **times}


def cut(function: Any, configuration: Any) -> Any:
    """The function, its kernels cut like this whenever it is traced."""

    def traced(*operands: Any) -> Any:
        with forced(configuration):
            return function(*operands)

    return traced


def _reason_against(
    key: str, loop: Loop | str, work: Work, wanted: Wanted, dtype: str, guard: Guard
) -> str:
    """Why a configuration cannot be chosen; empty if its result is right."""
    if isinstance(loop, str):
        return loop
    try:
        with guard(key):
            loop.spoil()
            loop(1)
            return reason_wrong(loop.result(), wanted, dtype, work)
    except Exception as error:
        # It is written down, and the next is tried.
        require_device(key, error)
        return reason_of(error)


def key_of(configuration: Any) -> str:
    """A configuration as a name."""
    return json.dumps(plain(configuration), sort_keys=True)


def plain(value: Any) -> Record:
    """The fields of a dataclass as JSON holds them; empty for None."""
    if value is None:
        return {}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(value).items()}


def _repetitions(layer: SparseLayer, n_rows: int) -> int:
    return repetitions(2 * n_rows * math.prod(layer.kernel_shape) / _USUAL_FLOPS)
