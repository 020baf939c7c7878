"""Points of the GPU benchmark as they are measured, here or in processes of which some may die."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
from tuning.candidates import plain
from tuning.ceilings import Ceilings
from tuning.device_lock import device_lock
from tuning.kernel_problems import gpu_engines
from tuning.watch import ENDED, AtWork, WorkLostError, guard_for
from tuning.workers import Result, Tell, keeps_much, run_in_workers

from gpu.budget import Budget
from gpu.points import Point
from gpu.products import measure_point
from pallas_kernels import Engine
from sparsemlp.files import Record

_MOST_DEATHS = 6
"""Processes that may die at a point before it is left to the next call."""
_THREADS_OF_A_WORKER = 3
"""How many programs it compiles at a time: Python lowers them one by one."""


class Measured(NamedTuple):
    """How points are measured.

    Attributes:
      folder: where the records are.
      names: of the engines.
      ceilings: what the device reached.
      rounds: turns of each contender.
      is_trial: whether nothing is measured.
    """

    folder: Path
    names: list[str]
    ceilings: Ceilings
    rounds: int
    is_trial: bool

    def record(
        self,
        point: Point,
        engines: dict[str, Engine],
        out: dict[str, str],
        write_down: Callable[[str, str], None],
        index: int | None,
    ) -> Record:
        """The record of a point.

        Args:
          point: the point.
          engines: by name.
          out: who of them is left out, and why.
          write_down: as of `guard_for`.
          index: of the worker; None without.
        """
        memory = jax.devices()[0].memory_stats() or {}
        own = at_work(self.folder, index)
        record = measure_point(
            point,
            {name: engine for name, engine in engines.items() if name not in out},
            self.ceilings,
            memory.get("bytes_limit"),
            rounds=self.rounds,
            is_tiny=self.is_trial,
            guard=guard_for(write_down, own, str(point), is_trial=self.is_trial),
            lock=device_lock(is_trial=self.is_trial),
            n_threads=8 if index is None else _THREADS_OF_A_WORKER,
        )
        record["failed"] |= out
        return record | {"asked": self.names}


def at_work(folder: Path, index: int | None) -> AtWork:
    """What is timed in this process, or in a worker."""
    return AtWork(folder / f"points.at_work{'' if index is None else f'.{index}'}")


def measure_in_workers(
    n_workers: int,
    measured: Measured,
    missing: Iterator[tuple[Point, dict[str, str]]],
    out_of: Callable[[Point], dict[str, str]],
    write: Callable[[Record], None],
    break_down: Callable[[str, str, str], None],
    budget: Budget,
) -> None:
    """Measures points in processes; of which a process dies is left out when it is tried again.

    Args:
      n_workers: how many processes.
      measured: how points are measured.
      missing: points, and who is left out of each.
      out_of: who is to be left out of a point by now, and why.
      write: takes the record of a point.
      break_down: takes a point, who broke there, and why.
      budget: is told how long each took.
    """
    again: list[Point] = []
    n_deaths: Counter[Point] = Counter()
    n_blamed: Counter[tuple[str, str] | None] = Counter()
    began: dict[Point, float] = {}

    def next_task() -> tuple[Point, dict[str, str]] | None:
        while again:
            point = again.pop()
            out = out_of(point)
            if set(out) <= set(measured.names):
                return point, out
            write({"key": str(point), "point": plain(point), "phases": {}, "failed": out})
        task = next(missing, None)
        if task is not None:
            began[task[0]] = time.monotonic()
        return task

    def told(task: tuple[Point, Any], broke: tuple[str, str]) -> None:
        break_down(str(task[0]), *broke)

    def done(task: tuple[Point, Any], record: Record) -> None:
        write(record)
        budget.note("point", time.monotonic() - began[task[0]])

    def died(index: int, task: tuple[Point, Any]) -> None:
        left = at_work(measured.folder, index).left()
        if left is not None and left in n_blamed:
            break_down(*left, ENDED)
        n_blamed[left] += 1
        n_deaths[task[0]] += 1
        if n_deaths[task[0]] < _MOST_DEATHS:
            again.append(task[0])
        else:
            print(f"{task[0]}: {_MOST_DEATHS} processes died of it, it is left to the next call")

    run_in_workers(
        n_workers, _begin, (measured,), next_task=next_task, told=told, done=done, died=died
    )


def _begin(index: int, tell: Tell, measured: Measured) -> Callable[[Any], Result]:
    """Begins a worker: makes what measures a point."""
    engines = gpu_engines(measured.is_trial)
    engines = {name: engines[name] for name in measured.names}

    def do(task: tuple[Point, dict[str, str]]) -> Result:
        point, out = task

        def write_down(name: str, reason: str) -> None:
            tell((name, reason))

        try:
            record = measured.record(point, engines, out, write_down, index)
        except WorkLostError as error:
            write_down(error.name, error.reason)
            sys.exit(str(error))
        jax.clear_caches()
        # What the allocator has gathered it keeps, and others need it.
        return Result(record, is_last=keeps_much())

    return do
