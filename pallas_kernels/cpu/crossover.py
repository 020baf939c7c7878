"""Where the native kernels beat XLA's masked products, by measurement.

`crossover.json` states, for some kernels, rows of x, blocks and phases, the smallest ratio at which
native pays, and where and when that was measured; `experiments/crossover.py` measures it anew. What
was not measured takes the entries of the nearest kernel, of their blocks one that is not more
favourable, and between their rows of x a ratio between.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import numpy as np

from pallas_kernels.sparse_layer import Phase, SparseLayer

TABLE_FILE = Path(__file__).with_name("crossover.json")
PHASES: tuple[Phase, ...] = get_args(Phase)
"""The columns of the table."""
RATIOS = tuple(tenths / 10 for tenths in range(1, 10))
"""What is measured; what does not pay at the last of them is taken to pay nowhere."""

Block = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Entry:
    """What was measured for a kernel and some rows of x.

    Attributes:
      kernel: `(in, out)`.
      axis: the axis of x that is contracted.
      rows: rows of x, or samples times channels along the token axis.
      blocks: for each block and phase the smallest ratio that pays; None if none measured does.
    """

    kernel: tuple[int, int]
    axis: int
    rows: int
    blocks: Mapping[Block, Mapping[Phase, float | None]]

    def smallest_ratios(self, block: Block) -> Mapping[Phase, float | None]:
        """Those of a block, or of the largest measured one that fits inside; empty if none does."""
        inside = [b for b in self.blocks if b[0] <= block[0] and b[1] <= block[1]]
        return self.blocks[max(inside, key=lambda b: (math.prod(b), b))] if inside else {}


@functools.cache
def load_table(path: Path = TABLE_FILE) -> tuple[Entry, ...]:
    """Reads the table, once a process."""
    table = json.loads(path.read_text())
    return tuple(
        Entry(
            (entry["kernel"][0], entry["kernel"][1]),
            entry["axis"],
            entry["rows"],
            {
                _block(text): dict(zip(table["phases"], ratios, strict=True))
                for text, ratios in entry["blocks"].items()
            },
        )
        for entry in table["entries"]
    )


def pays(phase: Phase, layer: SparseLayer, n_rows: int) -> bool:
    """Whether a product is expected to be faster than without native code.

    Args:
      phase: what is to be computed.
      layer: the layer; what is known of the nearest measured kernel holds for it.
      n_rows: rows of x, or samples times channels along the token axis.
    """
    smallest = _smallest_ratio(phase, layer, n_rows)
    n_blocks = math.prod(layer.kernel_shape) // math.prod(layer.block)
    return smallest <= RATIOS[-1] and layer.n_kept <= math.ceil(n_blocks * (1 - smallest))


def hands_over(layer: SparseLayer) -> bool:
    """Whether no phase pays at any measured ratio and number of rows: the blocks are too small."""
    return all(
        ratio is None
        for entry in _nearest(layer)
        for ratio in entry.smallest_ratios(layer.block).values()
    )


def _smallest_ratio(phase: Phase, layer: SparseLayer, n_rows: int) -> float:
    """The smallest ratio that pays; 1 if none does.

    Between two measured numbers of rows it moves evenly with their logarithm, beyond them not. Of
    two kernels that are as near the less favourable one is believed.
    """
    of_rows: dict[int, float] = {}
    for entry in _nearest(layer):
        ratio = entry.smallest_ratios(layer.block).get(phase)
        ratio = 1.0 if ratio is None else ratio
        of_rows[entry.rows] = max(ratio, of_rows.get(entry.rows, ratio))
    measured = sorted(of_rows)
    if not measured:
        return 1.0
    ratios = [of_rows[rows] for rows in measured]
    return float(np.interp(np.log(max(1, n_rows)), np.log(measured), ratios))


def _nearest(layer: SparseLayer) -> list[Entry]:
    """The entries of the measured kernel of the most similar size, then of the same shape."""
    entries = [entry for entry in load_table() if entry.axis == layer.axis]
    distances = [_unlikeness(entry.kernel, layer.kernel_shape) for entry in entries]
    nearest = min(distances, default=None)
    return [entry for entry, far in zip(entries, distances, strict=True) if far == nearest]


def _unlikeness(kernel: tuple[int, int], other: tuple[int, int]) -> tuple[float, float]:
    """How far apart the sizes of two kernels `(in, out)` are, then their shapes."""
    return _distance(math.prod(kernel), math.prod(other)), _distance(kernel[0], other[0])


def _distance(a: int, b: int) -> float:
    return abs(math.log(max(1, a) / max(1, b)))


def _block(text: str) -> Block:
    rows, cols = map(int, text.split("x"))
    return rows, cols
