"""What measurement says of a kernel here: how it is cut, and where it beats XLA.

What the table of this kind of device does not hold is cut as the kernel's own heuristic says, and
is not taken by `auto`; of products that JAX is told to compute otherwise than in TF32, with which
float32 was measured, it says nothing.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator
from typing import Any

import jax

from pallas_kernels.device_table import MARGIN, Entry, Problem, TableError, load_table, table_file
from pallas_kernels.precision import in_tf32

SAME_DENSITY = 0.95
"""Densities as close as this count as equal: a ratio keeps a whole number of blocks."""
LARGEST_STEP = 2
"""How many times as large a measured kernel may be, and its rows as many, to speak for another."""
_FORCED = contextvars.ContextVar[Any]("configuration", default=None)


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
