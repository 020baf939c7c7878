"""What was measured on a kind of device: how a kernel is cut there, and where it beats XLA.

A table is a JSON file in `tables/`, one for each kind of device; `experiments/tune.py` makes it.
What it does not hold is cut as the kernel's own heuristic says, and is not taken by `auto`. All was
measured with float32 in TF32: of products that JAX is told to compute otherwise it says nothing.
"""

import contextlib
import contextvars
import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from pallas_kernels.precision import in_tf32

FORMAT = 1
"""Of the files; one of another format is not read."""
TABLES = Path(__file__).with_name("tables")
MARGIN = 0.97
"""A kernel pays where it takes at most this share of the time of XLA."""
SAME_DENSITY = 0.95
"""Densities as close as this count as equal: a ratio keeps a whole number of blocks."""
LARGEST_STEP = 2
"""How many times as large a measured kernel may be, and its rows as many, to speak for another."""
_FORCED = contextvars.ContextVar[Any]("configuration", default=None)


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a kernel is asked to do, as far as its speed depends on it.

    Attributes:
      engine: name of the engine.
      version: of the engine's kernels; measurements of another version are of no use.
      kernel: the method of the engine: `product`, `input_gradient`, `kernel_gradient`, `mlp`,
        `mlp_gradients`, `compact_gradient`, `pruned_input_gradient`, `convolution`,
        `convolution_input_gradient`, `convolution_gradients`.
      dtype: of the operands.
      block: of the mask, rows over outputs; of the activation in `compact_gradient`; N and M in
        `pruned_input_gradient`.
      kernel_shape: `(in, out)`; of a pair of layers `(narrow, hidden)`.
      axis: the axis of x that is contracted.
      density: fraction that is kept.
      n_rows: rows of x, or samples times channels along the token axis.
    """

    engine: str
    version: int
    kernel: str
    dtype: str
    block: tuple[int, int]
    kernel_shape: tuple[int, int]
    axis: int
    density: float
    n_rows: int

    @property
    def key(self) -> tuple[Any, ...]:
        """What two problems share that take the same configuration."""
        exact = dataclasses.astuple(self)[:-2]
        return (*exact, density_bucket(self.density), rows_bucket(self.n_rows))


def density_bucket(density: float) -> int:
    """How often a half was dropped, rounded: 1, 0.5, 0.2 and 0.1 are 0, 1, 2 and 3."""
    return round(-math.log2(max(density, 2**-10)))


def rows_bucket(n_rows: int) -> int:
    """The power of two that is nearest to a number of rows."""
    return round(math.log2(max(1, n_rows)))


@dataclasses.dataclass(frozen=True)
class Entry:
    """What was measured of a problem.

    Attributes:
      problem: what the kernel was asked to do.
      configuration: the fields of the fastest right configuration; empty if there is no choice.
      microseconds: median time of the kernel with all that its product needs beside it; None if
        no configuration was right.
      dense_microseconds: median time of XLA for the same without a mask.
    """

    problem: Problem
    configuration: Mapping[str, int]
    microseconds: float | None
    dense_microseconds: float | None

    @property
    def pays(self) -> bool:
        """Whether the kernel is faster than XLA by more than noise."""
        return self.takes_at_most(MARGIN)

    def takes_at_most(self, share: float) -> bool:
        """Whether the kernel takes no more than a share of XLA's time."""
        if self.microseconds is None or self.dense_microseconds is None:
            return False
        return self.microseconds <= share * self.dense_microseconds


class TableError(ValueError):
    """A table cannot be used; the message says why and what to do."""


def table_file(device: str) -> Path:
    """Where the table of a kind of device is."""
    return TABLES / f"{re.sub(r'[^a-z0-9]+', '_', device.lower()).strip('_')}.json"


def read_table(path: Path) -> tuple[Entry, ...]:
    """The entries of a table; none if there is no such file.

    Raises:
      TableError: the file is no table of this format.
    """
    if not path.exists():
        return ()
    again = f"remove {path}, or make it anew: python experiments/tune.py"
    try:
        table = json.loads(path.read_bytes())
        if table["format"] != FORMAT:
            raise TableError(
                f"{path} is a table of format {table['format']}, this version reads {FORMAT}: "
                f"{again}"
            )
        if not table["measured"]:
            raise TableError(f"{path} holds no measurements: {again}")
        return tuple(map(_entry, table["entries"]))
    except TableError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(f"{path} is no table of measurements ({error!r}): {again}") from error


@functools.cache
def load_table(device: str) -> tuple[Entry, ...]:
    """The entries of a kind of device, read once a process."""
    return read_table(table_file(device))


def entries_here(engine: str, version: int) -> list[Entry]:
    """What was measured of an engine on the device of this process; nothing but on a GPU."""
    if jax.default_backend() != "gpu":
        return []
    entries = load_table(jax.devices()[0].device_kind)
    return [e for e in entries if (e.problem.engine, e.problem.version) == (engine, version)]


def configure[C](problem: Problem, heuristic: C) -> C:
    """How a kernel is to be cut: as it was measured to be fastest, or as its heuristic says.

    Args:
      problem: what the kernel is asked to do.
      heuristic: the configuration where nothing was measured, a dataclass.

    Raises:
      TableError: the table has another configuration than this kernel.
    """
    forced = _FORCED.get()
    if type(forced) is type(heuristic):
        return forced
    if not _holds(problem.dtype):
        return heuristic
    for entry in entries_here(problem.engine, problem.version):
        if entry.problem.key == problem.key and entry.configuration:
            try:
                return type(heuristic)(**entry.configuration)
            except TypeError as error:
                raise TableError(
                    f"{table_file(jax.devices()[0].device_kind)} cuts a kernel as none is "
                    f"({error}): make it anew: python experiments/tune.py"
                ) from error
    return heuristic


@contextlib.contextmanager
def forced(configuration: Any) -> Iterator[None]:
    """What is traced inside and has such a configuration is cut like this; None changes nothing."""
    token = _FORCED.set(configuration)
    try:
        yield
    finally:
        _FORCED.reset(token)


def pays(problem: Problem, share: float = MARGIN) -> bool:
    """Whether a kernel is expected to be faster than XLA, by measurement on this device.

    What was not measured takes the verdict of its nearest neighbour that is not more favourable:
    of the kernel of the nearest size and the nearest number of rows, the largest block that fits
    inside, at the next higher density. Of a kernel or rows that are much smaller than all that were
    measured nothing is known: the start of a kernel weighs more there.

    Args:
      problem: what the kernel is asked to do.
      share: of XLA's time that it may have taken.
    """

    def is_larger(other: Problem) -> bool:
        sizes = math.prod(other.kernel_shape), LARGEST_STEP * math.prod(problem.kernel_shape)
        return sizes[0] > sizes[1] or other.n_rows > LARGEST_STEP * problem.n_rows

    if not _holds(problem.dtype):
        return False
    measured = [
        entry
        for entry in entries_here(problem.engine, problem.version)
        if _kind(entry.problem) == _kind(problem) and not is_larger(entry.problem)
    ]

    def distance(entry: Entry) -> tuple[float, ...]:
        (n_in, n_out), (own_in, own_out) = entry.problem.kernel_shape, problem.kernel_shape
        apart = (n_in * n_out, own_in * own_out), (n_in, own_in)
        rows = (entry.problem.n_rows, problem.n_rows)
        return tuple(abs(math.log(max(1, a) / max(1, b))) for a, b in (*apart, rows))

    def fits(entry: Entry) -> bool:
        return all(a <= b for a, b in zip(entry.problem.block, problem.block, strict=True))

    nearest = min(map(distance, measured), default=None)
    inside = [entry for entry in measured if distance(entry) == nearest and fits(entry)]
    largest = max((math.prod(entry.problem.block) for entry in inside), default=0)
    denser = [
        entry
        for entry in inside
        if math.prod(entry.problem.block) == largest
        and entry.problem.density >= problem.density * SAME_DENSITY
    ]
    if not denser:
        return False
    next_higher = min(entry.problem.density for entry in denser)
    nearest_denser = [entry for entry in denser if entry.problem.density == next_higher]
    return all(entry.takes_at_most(share) for entry in nearest_denser)


def always_pays(engine: str, version: int, kernels: tuple[str, ...], dtype: str) -> bool:
    """Whether each of these kernels was measured here and beat XLA wherever it was.

    Args:
      engine: name of the engine.
      version: of its kernels.
      kernels: which.
      dtype: of the operands that they are wanted for.
    """
    if not _holds(dtype):
        return False
    entries = [e for e in entries_here(engine, version) if e.problem.kernel in kernels]
    found = {entry.problem.kernel for entry in entries}
    return found == set(kernels) and all(entry.pays for entry in entries)


def _holds(dtype: str) -> bool:
    """Whether what was measured says anything of products as they are computed now."""
    return dtype != "float32" or in_tf32()


def _kind(problem: Problem) -> tuple[str, str, int]:
    return problem.kernel, problem.dtype, problem.axis


def _entry(record: Mapping[str, Any]) -> Entry:
    problem = dict(record["problem"])
    for name in ("block", "kernel_shape"):
        first, second = problem[name]
        problem[name] = (first, second)
    rest = {name: record[name] for name in ("microseconds", "dense_microseconds")}
    return Entry(Problem(**problem), record["configuration"], **rest)
