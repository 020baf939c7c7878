"""Memory and barriers of programs on the Hopper in Python (`simulated_hopper`)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np


class SimulationError(Exception):
    """A kernel did what a GPU does not forgive."""


class Barrier:
    """One barrier of one program."""

    def __init__(self, count: int) -> None:
        self.count, self.phase, self.arrived, self.bytes = count, 0, 0, 0

    def arrive(self, more_bytes: int = 0) -> None:
        """One arrival, after which so many bytes more have to come."""
        self.arrived, self.bytes = self.arrived + 1, self.bytes + more_bytes
        if self.arrived > self.count:
            raise SimulationError("a barrier is arrived at more often than it counts")
        self._turn()

    def complete(self, n_bytes: int) -> None:
        """So many bytes have come."""
        self.bytes -= n_bytes
        self._turn()

    def _turn(self) -> None:
        if self.arrived == self.count and self.bytes == 0:
            self.phase, self.arrived = self.phase + 1, 0


@dataclasses.dataclass(eq=False)
class Program:
    """One program: its place, its memory by name and the warpgroups that have not ended."""

    axes: dict[str, int]
    rank: int
    cluster: list["Program"]
    memory: dict[str, Any]
    n_running: int


@dataclasses.dataclass(eq=False)
class Barriers:
    """An array of barriers of a program; of a cluster, one that arrives does so in all."""

    program: Program
    name: str
    barriers: list[Barrier]
    of_cluster: bool
    index: int = 0

    @property
    def at(self) -> Any:
        return _At(lambda index: dataclasses.replace(self, index=int(index)))

    @property
    def buffer(self) -> str:
        """What it guards, as `ring` of `ring_free`."""
        return self.name.rpartition("_")[0]

    def in_all(self) -> list[Barrier]:
        """The same barrier of each program that hears of an arrival."""
        programs = self.program.cluster if self.of_cluster else [self.program]
        return [running(p).memory[self.name].barriers[self.index] for p in programs]

    @property
    def own(self) -> Barrier:
        """That of this program."""
        return self.barriers[self.index]


@dataclasses.dataclass(eq=False)
class Ref:
    """A part of an array in global memory, or in the shared memory of a program."""

    array: np.ndarray
    name: str = ""
    index: tuple[Any, ...] = ()
    is_turned: bool = False

    @property
    def at(self) -> Any:
        return _At(lambda index: dataclasses.replace(self, index=_index(index)))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def read(self) -> np.ndarray:
        """The numbers; zeros where they lie outside."""
        found = self.array[self.index]
        if all(isinstance(i, slice) for i in self.index):
            lengths = [i.stop - i.start for i in self.index]
            missing = [(0, n - m) for n, m in zip(lengths, found.shape, strict=False)]
            found = np.pad(found, [*missing, *[(0, 0)] * (found.ndim - len(missing))])
        return found.T if self.is_turned else found

    def write(self, values: Any) -> None:
        """Except what lies outside."""
        target = self.array[self.index]
        target[...] = values[tuple(slice(n) for n in target.shape)]


class _At:
    def __init__(self, take: Callable[[Any], Any]) -> None:
        self._take = take

    def __getitem__(self, index: Any) -> Any:
        return self._take(index)


def _index(index: Any) -> tuple[Any, ...]:
    def plain(i: Any) -> Any:
        if hasattr(i, "size") and hasattr(i, "start"):
            return slice(int(i.start), int(i.start) + int(i.size))
        return i if isinstance(i, slice) else int(i)

    return tuple(map(plain, index if isinstance(index, tuple) else (index,)))


def running(program: Program) -> Program:
    """The program, whose memory or barrier is about to be reached.

    Raises:
      SimulationError: it has ended.
    """
    if program.n_running == 0:
        raise SimulationError("a program is reached after it has ended")
    return program
