"""Problems that the tuner measures, in this process or in several, and writes to its table."""

import dataclasses
import datetime
import functools
import inspect
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from pallas_kernels import Engine, SparseLayer
from sparsemlp.blocks import format_block
from sparsemlp.files import Record
from sparsemlp.runs.history import History
from tuning.candidates import measure, plain
from tuning.checksum import checksum
from tuning.device_lock import Lock, device_lock, unlocked
from tuning.kernel_problems import gpu_engines, problem_of
from tuning.table import TuningTable, line_of, problem_key
from tuning.watch import ENDED, AtWork, WorkLostError, guard_for
from tuning.workers import Result, Tell, cached_in, environment_with, keeps_much, run_in_workers

_MOST_DEATHS = 6
"""Processes that may die of a problem before it is left to the next call: each leaves something out
that the one before died of, or that two did."""
_THREADS_OF_A_WORKER = 3
"""How many configurations it compiles at a time: Python lowers them one by one."""


class Effort(NamedTuple):
    """How a problem is measured.

    Attributes:
      candidates: configurations to try.
      rounds: turns of each.
      is_interpreted: whether the kernels are interpreted, and nothing is measured.
    """

    candidates: int
    rounds: int
    is_interpreted: bool


@dataclasses.dataclass(frozen=True)
class Task:
    """A problem to be measured.

    Attributes:
      engine: name of the engine.
      kernel: one of `KERNELS`.
      layer: the layer.
      n_rows: rows of x.
    """

    engine: str
    kernel: str
    layer: SparseLayer
    n_rows: int

    def __str__(self) -> str:
        block = format_block(self.layer.block)
        return f"{self.engine} {self.kernel} {self.layer.kernel_shape} {block}"


def code_of(engine: Engine) -> str:
    """A checksum of an engine's own modules, which entries of the table have beside their times."""
    return checksum(Path(inspect.getfile(type(engine))).parent)


def at_work_of(path: Path, index: int | None) -> AtWork:
    """What is at work for a table, in this process or in a worker."""
    return AtWork(path.with_name(f"{path.name}.at_work{'' if index is None else f'.{index}'}"))


def add_entry(table: TuningTable, task: Task, effort: Effort) -> Record:
    """Measures a problem and writes the table; or what broke it, until it has an entry."""
    engine = gpu_engines(effort.is_interpreted)[task.engine]
    problem = plain(problem_of(engine, task.kernel, task.layer, task.n_rows))
    write_down = functools.partial(table.write_down, problem_key(problem))
    broken, at_work = table.broken(problem), at_work_of(table.path, None)
    try:
        entry = _measured(engine, task, effort, broken, write_down, at_work)
    except WorkLostError as error:
        write_down(error.name, error.reason)
        raise
    _write(table, entry)
    return entry


def _measured(
    engine: Engine,
    task: Task,
    effort: Effort,
    broken: Mapping[str, str],
    write_down: Callable[[str, str], None],
    at_work: AtWork,
    lock: Lock = unlocked,
    n_threads: int = 8,
) -> Record:
    """The entry of a task; `write_down` is told what broke it."""
    problem = problem_of(engine, task.kernel, task.layer, task.n_rows)
    key = problem_key(plain(problem))
    entry = measure(
        engine,
        problem,
        task.layer,
        n_candidates=effort.candidates,
        rounds=effort.rounds,
        is_interpreted=effort.is_interpreted,
        broken=broken,
        guard=guard_for(write_down, at_work, key, is_trial=effort.is_interpreted),
        lock=lock,
        n_threads=n_threads,
    )
    return entry | {"date": str(datetime.date.today()), "code": code_of(engine)}


def add_in_workers(
    n_workers: int, missing: Iterator[Task], table: TuningTable, effort: Effort
) -> None:
    """Measures problems in processes of their own; what they die of is left out at the next try."""
    engines = gpu_engines(effort.is_interpreted)
    again: list[Task] = []
    n_deaths: Counter[Task] = Counter()
    n_blamed: Counter[tuple[str, str] | None] = Counter()

    def problem(task: Task) -> Record:
        return plain(problem_of(engines[task.engine], task.kernel, task.layer, task.n_rows))

    def next_task() -> tuple[Task, dict[str, str]] | None:
        task = again.pop() if again else next(missing, None)
        return task and (task, table.broken(problem(task)))

    def told(given: tuple[Task, Any], broke: tuple[str, str]) -> None:
        table.write_down(problem_key(problem(given[0])), *broke)

    def done(given: tuple[Task, Any], entry: Record) -> None:
        _write(table, entry)
        print(line_of(entry), flush=True)

    def died(index: int, given: tuple[Task, Any]) -> None:
        task = given[0]
        left = at_work_of(table.path, index).left()
        if left is not None and left in n_blamed:
            table.write_down(*left, ENDED)
        n_blamed[left] += 1
        n_deaths[task] += 1
        if n_deaths[task] < _MOST_DEATHS:
            again.append(task)
        else:
            print(f"{task}: {_MOST_DEATHS} processes died of it, it is left to the next call")

    with tempfile.TemporaryDirectory() as scratch, environment_with(cached_in(Path(scratch))):
        run_in_workers(
            n_workers,
            _begin,
            (table.path, effort),
            next_task=next_task,
            told=told,
            done=done,
            died=died,
        )


def _begin(
    index: int, tell: Tell, path: Path, effort: Effort
) -> Callable[[tuple[Task, dict[str, str]]], Result]:
    """Begins a worker: makes what measures a problem."""
    engines, at_work = gpu_engines(effort.is_interpreted), at_work_of(path, index)

    def do(given: tuple[Task, dict[str, str]]) -> Result:
        task, broken = given
        lock = device_lock(is_trial=effort.is_interpreted)

        def write_down(name: str, reason: str) -> None:
            tell((name, reason))

        how = effort, broken, write_down, at_work
        try:
            entry = _measured(engines[task.engine], task, *how, lock, _THREADS_OF_A_WORKER)
        except WorkLostError as error:
            tell((error.name, error.reason))
            sys.exit(str(error))
        jax.clear_caches()
        return Result(entry, is_last=keeps_much())

    return do


def _write(table: TuningTable, entry: Record) -> None:
    """Adds an entry to the table, and all that was timed for it to the file beside it."""
    timed = entry.pop("timed", [])
    table.add(entry)
    history = History(table.path.with_name(f"{table.path.stem}.candidates.jsonl"))
    about = {name: entry[name] for name in ("problem", "dense_microseconds")}
    for found in timed:
        history.append(about | found | {"measured": table.is_measured})
