"""How the kernel's gradient is cut into programs and rings on Hopper."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.mosaic import launch
from pallas_kernels.sparse_layer import SparseLayer

ROWS = 64
"""Rows of a warpgroup's products, which the hardware sets."""
DEPTH_BYTES = 128
"""Of one feature of x or dy in one buffer."""
STAGES = (6, 5, 4, 3, 2)
"""Buffers of the ring: as many as fit, as of a product."""
BALANCED_STAGES = (10, 8, *STAGES)
"""Those of a program that has a multiprocessor for itself: more of small blocks have to be on their
way at once."""
WAVES = (1, 2, 3, 4, 8)
"""How many times as many programs there may be as run at once."""
MOST_STAGED = 2
"""Warpgroups that write their results at the same time, each through memory of its own."""
MOST_ROWS = 256
"""Rows of the result of a program, at most: four warpgroups'."""
BESIDE = (1, 3)
"""Loads that a step counts beside those of its blocks: as it loads, or for the time that a copy
takes to begin as well."""
COPYING_REGISTERS = 56
"""Of a thread of a balanced way that copies: it knows its share of all groups as well."""
_OTHER_REGISTERS = 32
"""Of a thread, beside its sums."""


class Shape(NamedTuple):
    """How the result is computed: as it lies in dW, or turned.

    Attributes:
      own: features of a block in the operand of which each block has another part: x, or dy where
        blocks of one block row are computed together.
      shared: features of one in the other operand.
      n_lines: lines of blocks, of each of which some are computed together: block columns of dW, or
        block rows.
      n_own: features of that first operand.
      own_along_rows: whether XLA transposes it, so that blocks lie above each other: to fill the
        rows of a product, or as tensor cores read float32.
      shared_along_rows: the same of the other one.
      is_shared_left: whether the shared features are the rows of the result, else the own ones.
      is_turned: whether the result is computed turned.
    """

    own: int
    shared: int
    n_lines: int
    n_own: int
    own_along_rows: bool
    shared_along_rows: bool
    is_shared_left: bool
    is_turned: bool

    @property
    def height(self) -> int:
        """Of a block as it is computed."""
        return self.shared if self.is_shared_left else self.own

    @property
    def width(self) -> int:
        """Of a block as it is computed."""
        return self.own if self.is_shared_left else self.shared


def shape_of(layer: SparseLayer, *, by_rows: bool) -> Shape:
    """How the gradient of a layer is computed.

    Args:
      layer: the layer.
      by_rows: whether blocks of one block row are computed together, not of one block column.
    """
    (n_in, n_out), (rows, cols) = layer.kernel_shape, layer.block
    is_wide = jnp.dtype(layer.dtype).itemsize == 4
    if not by_rows:
        above = is_wide or cols < ROWS
        return Shape(cols, rows, n_out // rows, n_in, above, is_wide, False, False)
    if cols >= ROWS and not is_wide:
        return Shape(rows, cols, n_in // cols, n_out, False, False, True, False)
    above = is_wide or rows < ROWS
    return Shape(rows, cols, n_in // cols, n_out, above, is_wide, False, True)


def orientations(layer: SparseLayer) -> list[bool]:
    """By block columns, by rows, or both: a side of 64 or more is the rows, if one is."""
    heights = {by_rows: shape_of(layer, by_rows=by_rows).height for by_rows in (False, True)}
    return [by_rows for by_rows, height in heights.items() if height >= ROWS] or [False, True]


@dataclasses.dataclass(frozen=True)
class GradientTiles:
    """How a kernel's gradient is cut.

    Attributes:
      n_together: blocks of one line that a program computes.
      stages: buffers of the ring.
      programs: how many programs there are at most, where there are fewer groups of blocks; the
        rows are shared out among them. If balanced, how many there are.
      by_rows: whether these are blocks of one block row, for which x is loaded once, not of one
        block column and dy.
      balanced: whether all programs have as much to do (`balanced_gradient.py`).
      beside: loads that a step then counts beside those of its blocks, one at least: of what the
        blocks share, and of what takes as long whatever is loaded.
    """

    n_together: int
    stages: int
    programs: int
    by_rows: bool
    balanced: bool = False
    beside: int = 1

    def per_share(self, n_steps: int, n_groups: int) -> int:
        """How many of all steps a share of the rows has at most, with so many groups of blocks."""
        n_shares = max(1, self.programs // n_groups)
        return pl.cdiv(n_steps, min(n_steps, n_shares))


DENSE = GradientTiles(0, 0, 0, False)
"""No kernel: XLA computes all of dW and clears what is dropped. Tensor cores load less for it than
for many small blocks."""


def search_space(layer: SparseLayer) -> Iterator[GradientTiles]:
    """Every way to cut the gradient of a layer that fits shared memory, but the balanced ones."""
    for by_rows in orientations(layer):
        shape = shape_of(layer, by_rows=by_rows)
        for n, waves in itertools.product(_together(shape), WAVES):
            stages = _stages(n, shape, _staging_bytes(n, shape))
            if stages:
                programs = waves * launch.multiprocessors()
                yield GradientTiles(n, stages, programs, by_rows)


def balanced_space(layer: SparseLayer) -> Iterator[GradientTiles]:
    """The balanced ways, which compute blocks as they lie in dW."""
    for by_rows in orientations(layer):
        shape = shape_of(layer, by_rows=by_rows)
        if not shape.is_turned:
            for n in _together(shape):
                ones, staged = ROWS * DEPTH_BYTES, n * shape.height * (shape.height < ROWS)
                staging = launch.panel_bytes((staged, shape.width), jnp.float32)
                stages = _stages(n, shape, ones + staging, BALANCED_STAGES)
                # Sums of a block and those of db beside it.
                registers = shape.width + _OTHER_REGISTERS
                possible = launch.registers(n * shape.height // ROWS, COPYING_REGISTERS)
                if stages and registers <= possible:
                    programs = launch.multiprocessors()
                    # Steps of one block count alike in any case.
                    for beside in BESIDE if n > 1 else BESIDE[:1]:
                        yield GradientTiles(n, stages, programs, by_rows, True, beside)


def _together(shape: Shape) -> list[int]:
    """How many blocks of one line may be computed at once."""
    return [n for n in (1, 2, 4, 8) if _is_tall(n * shape.height)]


def _stages(n_together: int, shape: Shape, beside: int, possible: tuple[int, ...] = STAGES) -> int:
    """How many buffers fit shared memory beside so many bytes; 0 if too few do."""
    left = launch.SHARED_MEMORY_BYTES - launch.BARRIERS_BYTES - beside
    buffer = (n_together * shape.own + shape.shared) * DEPTH_BYTES
    return next((n for n in possible if n * buffer <= left), 0)


def _staging_bytes(n_together: int, shape: Shape) -> int:
    """Of the result on its way out."""
    tall = min(n_together * shape.height, MOST_STAGED * ROWS)
    return launch.panel_bytes((tall, shape.width), jnp.float32)


def _is_tall(n: int) -> bool:
    """Whether a program may have so many rows of the result."""
    return n % ROWS == 0 and n <= MOST_ROWS


def n_steps(n_rows: int, dtype: str) -> int:
    """How many buffers the rows of x and dy fill, one after the other."""
    return pl.cdiv(n_rows, DEPTH_BYTES // jnp.dtype(dtype).itemsize)
