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
    """How the result is computed: as it lies in dW, or turned.

    Attributes:
      height: of a block as it is computed.
      width: of one.
      n_lines: lines of blocks, of each of which some are computed together: block columns of dW, or
        block rows if it is turned.
      n_left: features of the left operand: x, or dy if it is turned.
      left_along_rows: whether XLA transposes the left operand, so that blocks lie above each other:
        to fill the rows of a product, or as tensor cores read float32.
      right_along_rows: the same of the right one.
    """

    height: int
    width: int
    n_lines: int
    n_left: int
    left_along_rows: bool
    right_along_rows: bool


def shape_of(layer: SparseLayer, *, is_swapped: bool) -> Shape:
    """How the gradient of a layer is computed.

    Args:
      layer: the layer.
      is_swapped: whether it is turned.
    """
    (n_in, n_out), (rows, cols) = layer.kernel_shape, layer.block
    is_wide = jnp.dtype(layer.dtype).itemsize == 4
    if is_swapped:
        return Shape(rows, cols, n_in // cols, n_out, is_wide or rows < ROWS, is_wide)
    return Shape(cols, rows, n_out // rows, n_in, is_wide or cols < ROWS, is_wide)


def orientations(block: tuple[int, int]) -> list[bool]:
    """Whether results may be turned, not, or both: a side of 64 or more is the rows, if one is."""
    rows, cols = block
    heights = {False: cols, True: rows}
    return [turned for turned, height in heights.items() if height >= ROWS] or [False, True]


@dataclasses.dataclass(frozen=True)
class GradientTiles:
    """How a kernel's gradient is cut.

    Attributes:
      n_together: blocks of one line that a program computes.
      stages: buffers of the ring.
      programs: how many programs there are at most, where there are fewer groups of blocks; the
        rows are shared out among them.
      is_swapped: whether the result is computed turned: its left operand is dy then, else x.
    """

    n_together: int
    stages: int
    programs: int
    is_swapped: bool

    def per_share(self, n_steps: int, n_groups: int) -> int:
        """How many of all steps a share of the rows has at most, with so many groups of blocks."""
        n_shares = max(1, self.programs // n_groups)
        return pl.cdiv(n_steps, min(n_steps, n_shares))


def search_space(layer: SparseLayer) -> Iterator[GradientTiles]:
    """Every way to cut the gradient of a layer that fits shared memory."""
    for is_swapped in orientations(layer.block):
        shape = shape_of(layer, is_swapped=is_swapped)
        together = [n for n in (1, 2, 4, 8, 16) if _is_tall(n * shape.height)]
        for n, stages, programs in itertools.product(together, STAGES, PROGRAMS):
            tall = n * shape.height
            ring = stages * (tall + shape.width) * DEPTH_BYTES
            staging = launch.panel_bytes((tall, shape.width), jnp.float32)
            if ring + staging + launch.BARRIERS_BYTES <= launch.SHARED_MEMORY_BYTES:
                yield GradientTiles(n, stages, programs, is_swapped)


def _is_tall(n: int) -> bool:
    """Whether a program may have so many rows of the result."""
    return n % ROWS == 0 and n <= MOST_ROWS


def n_steps(n_rows: int, dtype: str) -> int:
    """How many buffers the rows of x and dy fill, one after the other."""
    return pl.cdiv(n_rows, DEPTH_BYTES // jnp.dtype(dtype).itemsize)
