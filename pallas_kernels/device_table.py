"""The tables of what was measured on a kind of device: what they hold, and their files.

Each is a JSON file in `tables/`, made by `experiments/tune.py`. All was measured with float32 in
TF32.
"""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 1
"""Of the files; one of another format is not read."""
TABLES = Path(__file__).with_name("tables")
MARGIN = 0.97
"""A kernel pays where it takes at most this share of the time of XLA."""


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


def _entry(record: Mapping[str, Any]) -> Entry:
    problem = dict(record["problem"])
    for name in ("block", "kernel_shape"):
        first, second = problem[name]
        problem[name] = (first, second)
    rest = {name: record[name] for name in ("microseconds", "dense_microseconds")}
    return Entry(Problem(**problem), record["configuration"], **rest)
