"""Times compiled loops in turns, and each repetition in them."""

import math
import statistics
import time
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.timing import Contender, quartiles

from tuning.watch import Guard, reason_of, require_device, unguarded

WARM_SECONDS = 0.3
"""How long a GPU works before it is timed, until its clock is up."""


class Timed(NamedTuple):
    """Seconds of one repetition: the median of the turns and their quartiles."""

    median: float
    low: float
    high: float


def time_loops(
    loops: Mapping[str, Contender | str],
    n_times: int,
    rounds: int,
    warm_seconds: float = 0.0,
    guard: Guard = unguarded,
) -> tuple[dict[str, Timed], dict[str, str]]:
    """Times loops in turns.

    Args:
      loops: what `compile_loops` made.
      n_times: repetitions in a loop.
      rounds: turns of each.
      warm_seconds: how long all of them run before: a GPU that waited for a compiler is slow.
      guard: what watches over each run, under the name of whose it is.

    Returns:
      Seconds of a repetition by name, and why the others failed.

    Raises:
      WorkLostError: the device does not answer after a run of the loop that it names.
    """
    failed = {name: loop for name, loop in loops.items() if isinstance(loop, str)}
    runs = {name: loop for name, loop in loops.items() if not isinstance(loop, str)}

    def take_turn(run: Contender, name: str) -> float:
        try:
            with guard(name):
                began = time.perf_counter()
                run(1)
                return time.perf_counter() - began
        except Exception as error:
            require_device(name, error)
            failed[name] = reason_of(error)
            return math.nan

    def take_turns() -> dict[str, float]:
        return {name: take_turn(run, name) for name, run in runs.items() if name not in failed}

    take_turns()
    warm = time.monotonic() + warm_seconds
    while runs and time.monotonic() < warm:
        take_turns()
    turns = [take_turns() for _ in range(1 + rounds)][1:]
    times = {name: [turn[name] for turn in turns] for name in runs if name not in failed}
    return {
        name: Timed(statistics.median(own) / n_times, *(edge / n_times for edge in quartiles(own)))
        for name, own in times.items()
    }, failed
