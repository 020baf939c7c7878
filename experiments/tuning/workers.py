"""Processes that work on one task each, again and again, and tell the program that began them."""

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

import jax

from sparsemlp.cores import usable_cores

_MOST_KEPT = 1 / 32
"""Share of the memory of a device that an idle process may keep."""
_TOLD, _DONE, _LAST = "told", "done", "last"


class Result(NamedTuple):
    """What came of a task.

    Attributes:
      value: for the program.
      is_last: whether the process ends with it, and another takes its place.
    """

    value: Any
    is_last: bool = False


Tell = Callable[[Any], None]
"""Tells the program something before the task is done."""
Begin = Callable[..., Callable[[Any], Result]]
"""Called in each process, by its name in a module: `begin(index, tell, *arguments)`."""


class _Worker(NamedTuple):
    process: SpawnProcess
    connection: Connection


def run_in_workers(
    n_workers: int,
    begin: Begin,
    arguments: tuple[Any, ...],
    *,
    next_task: Callable[[], Any],
    told: Callable[[Any, Any], None],
    done: Callable[[Any, Any], None],
    died: Callable[[int, Any], None],
) -> None:
    """Does tasks in so many processes; returns when none is left and all are done.

    A process that dies is replaced; its task is not given again unless `next_task` returns it.

    Args:
      n_workers: how many processes.
      begin: makes what does a task.
      arguments: given to `begin`.
      next_task: the next one, None if there is none for now. It is asked whenever a process is
        free.
      told: is given a task and what was told of it.
      done: is given a task and its value.
      died: is given the index of a process and the task of which it died.
    """
    workers: dict[int, _Worker] = {}
    tasks: dict[int, Any] = {}

    def start(index: int) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        given = (theirs, os.getpid(), begin, index, arguments)
        process = context.Process(target=_serve, args=given, daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def end(index: int) -> None:
        worker = workers.pop(index)
        worker.connection.close()
        worker.process.join()

    try:
        while True:
            for index in range(n_workers):
                if index not in tasks and (task := next_task()) is not None:
                    if index not in workers:
                        workers[index] = start(index)
                    tasks[index] = task
                    try:
                        workers[index].connection.send(task)
                    except OSError:  # It died while it had nothing to do.
                        end(index)
                        workers[index] = start(index)
                        workers[index].connection.send(task)
            if not tasks:
                return
            by_connection = {workers[index].connection: index for index in tasks}
            for connection in wait(list(by_connection)):
                index = by_connection[connection]  # pyright: ignore[reportArgumentType]
                try:
                    kind, value = workers[index].connection.recv()
                except (EOFError, OSError):
                    end(index)
                    died(index, tasks.pop(index))
                    continue
                if kind == _TOLD:
                    told(tasks[index], value)
                    continue
                if kind == _LAST:
                    end(index)
                done(tasks.pop(index), value)
    finally:
        for worker in workers.values():
            worker.process.kill()


def usual_workers() -> int:
    """How many processes there are if nobody says: one for two usable cores, at most 8."""
    return max(1, min(8, usable_cores() // 2))


def cached_in(folder: Path) -> dict[str, str]:
    """Variables of processes that share what XLA compiled, its choice of products among it."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
    }


@contextlib.contextmanager
def environment_with(variables: Mapping[str, str]) -> Iterator[None]:
    """The environment of processes that are started inside; what is set before stays."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def keeps_much() -> bool:
    """Whether this process has had more memory of the device than others can spare.

    What its allocator has gathered it keeps until it ends.
    """
    memory = jax.devices()[0].memory_stats() or {}
    most = _MOST_KEPT * memory.get("bytes_limit", math.inf)
    return memory.get("peak_bytes_in_use", 0) > most


def _serve(
    connection: Connection, parent: int, begin: Begin, index: int, arguments: tuple[Any, ...]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    do = begin(index, lambda value: connection.send((_TOLD, value)), *arguments)
    while True:
        result = do(connection.recv())
        connection.send((_LAST if result.is_last else _DONE, result.value))
        if result.is_last:
            return


def end_with(parent: int) -> None:
    """Ends this process soon after another one is its parent: the own one has died then."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
