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
STAGES = (2, 3, 4, 6)
"""Buffers of the ring."""
PROGRAMS = (132, 264, 396, 528, 1056)
"""How many programs there are at most: so many waves of an H200, which runs 132 of them at once."""
MOST_ROWS = 256
"""Rows of the result of a program, at most: four warpgroups'."""


class Shape(NamedTuple):
    """A block of the result as it is computed.

    Attributes:
      height: of it.
      width: of it.
      is_swapped: whether it is the block of dW turned: the left operand is dy then, else x.
    """

    height: int
    width: int
    is_swapped: bool


def shape_of(block: tuple[int, int]) -> Shape:
    """How blocks `(rows, cols)` are computed: a side of 64 or more becomes the rows, if one has."""
    rows, cols = block
    is_swapped = cols < ROWS <= rows
    return Shape(rows, cols, is_swapped) if is_swapped else Shape(cols, rows, is_swapped)


@dataclasses.dataclass(frozen=True)
class GradientTiles:
    """How a kernel's gradient is cut.

    Attributes:
      n_together: blocks of one column that a program computes.
      stages: buffers of the ring.
      programs: how many programs there are at most, where there are fewer groups of blocks; the
        rows are shared out among them.
    """

    n_together: int
    stages: int
    programs: int

    def per_share(self, n_steps: int, n_groups: int) -> int:
        """How many of all steps a share of the rows has at most, with so many groups of blocks."""
        n_shares = max(1, self.programs // n_groups)
        return pl.cdiv(n_steps, min(n_steps, n_shares))


def search_space(layer: SparseLayer) -> Iterator[GradientTiles]:
    """Every way to cut the gradient of a layer that fits shared memory."""
    shape = shape_of(layer.block)
    most = 1 if shape.is_swapped else max(1, MOST_ROWS // shape.height)
    together = [n for n in (1, 2, 4, 8, 16) if n <= most and n * shape.height % ROWS == 0]
    for n, stages, programs in itertools.product(together, STAGES, PROGRAMS):
        tall = n * shape.height
        ring = stages * (tall + shape.width) * DEPTH_BYTES
        staging = launch.panel_bytes((tall, shape.width), jnp.float32)
        if ring + staging + launch.BARRIERS_BYTES <= launch.SHARED_MEMORY_BYTES:
            yield GradientTiles(n, stages, programs)


def n_steps(n_rows: int, dtype: str) -> int:
    """How many buffers the rows of x and dy fill, one after the other."""
    return pl.cdiv(n_rows, DEPTH_BYTES // jnp.dtype(dtype).itemsize)
