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
STAGES = (4, 3, 2, 6)
"""Buffers of the ring, the heuristic's choice first."""
PROGRAMS = (528, 264, 1056)
"""How many programs there are at least, if there are the rows; the heuristic's choice first."""
MOST_ROWS = 256
"""Rows of the result of a program, at most: four warpgroups'."""
FLOPS_PER_BYTE = {2: 140, 4: 70}
"""As many as tensor cores do while a byte comes from the second-level cache, by the bytes of a
number: 780 and 390 TFLOP/s over 5.5 TB/s (H200)."""


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
      programs: how many programs there are at least, if there are the rows.
    """

    n_together: int
    stages: int
    programs: int


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


def step_cost(layer: SparseLayer, n_together: int) -> float:
    """What a row of x and dy costs all programs, in bytes, if blocks were kept at random.

    They load one operand for each kept block and the other for each group of blocks, or multiply
    while that comes, whichever takes longer. The last group of a column is half empty in the mean.
    """
    height, width, _ = shape_of(layer.block)
    n_columns = layer.kernel_shape[1] // layer.block[0]
    n_groups = layer.n_kept / n_together
    if n_together > 1:
        n_groups += min(n_columns, layer.n_kept) * (n_together - 1) / (2 * n_together)
    size = jnp.dtype(layer.dtype).itemsize
    loaded = (layer.n_kept * height + n_groups * width) * size
    return max(loaded, 2 * layer.n_kept * height * width / FLOPS_PER_BYTE[size])


def gradient_tiles_of(layer: SparseLayer) -> GradientTiles:
    """The way to cut the gradient of a layer that costs the least, by `step_cost`.

    Not measured yet.
    """
    ways = list(search_space(layer))
    n_together = min((way.n_together for way in ways), key=lambda n: step_cost(layer, n))
    return next(way for way in ways if way.n_together == n_together)


def n_steps(n_rows: int, dtype: str) -> int:
    """How many buffers the rows of x and dy fill, one after the other."""
    return pl.cdiv(n_rows, DEPTH_BYTES // jnp.dtype(dtype).itemsize)
