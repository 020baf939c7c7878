"""How products with a block-sparse operand are cut into programs, panels and rings on Hopper."""

import dataclasses

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Int

from pallas_kernels.layout import BlockLists, insertion_points
from pallas_kernels.mosaic import launch

ROWS = 64
"""Rows of a warpgroup's products, which the hardware sets."""
PROGRAMS = 132
"""How many programs there are at least, if there is work: multiprocessors of an H200."""
STAGES = (16, 8, 4, 2)
"""Buffers of the ring, the more the better: not tuned yet."""
RING_BYTES = range(8 << 10, (64 << 10) + 1)
"""Of all its buffers: enough to hide the way from the cache, and not the place of the panel."""
COLUMNS = 256
"""Features whose sums are held at once while a panel is cut: of the registers, half."""


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How a product is cut.

    Attributes:
      n_compute: warpgroups that multiply, of 64 rows each.
      pieces: into how many pieces the panel is cut.
      blocks: blocks of contracted features in a piece.
      lines: block columns that are summed at once.
      stages: buffers of the ring.
    """

    n_compute: int
    pieces: int
    blocks: int
    lines: int
    stages: int


def tiles_of(
    width: int, depth: int, n_blocks: int, dtype: str, n_rows: int, memory_bytes: int
) -> Tiles:
    """How a product is cut so that it fits shared memory: not tuned yet.

    Args:
      width: features of a block of the result.
      depth: features of a block that are contracted.
      n_blocks: how many blocks are contracted.
      dtype: of the operands.
      n_rows: rows of the result.
      memory_bytes: of shared memory.
    """
    block = launch.panel_bytes((width, depth), dtype)
    stages = [n for n in STAGES if n * block in RING_BYTES] or [min(STAGES)]
    most = 2 if n_rows > ROWS else 1

    def left(n_compute: int, stages: int) -> int:
        staging = launch.panel_bytes((n_compute * ROWS, width), dtype)
        return memory_bytes - stages * block - staging - launch.BARRIERS_BYTES

    ways = [(n_compute, n) for n_compute in range(most, 0, -1) for n in stages]
    for n_compute, n in ways:
        if launch.panel_bytes((n_blocks, n_compute * ROWS, depth), dtype) <= left(n_compute, n):
            return Tiles(n_compute, 1, n_blocks, 1, n)
    for n_compute, n in ways:
        fit = left(n_compute, n) // (2 * launch.panel_bytes((n_compute * ROWS, depth), dtype))
        if fit > 0:
            pieces = pl.cdiv(n_blocks, fit)
            return Tiles(n_compute, pieces, pl.cdiv(n_blocks, pieces), min(4, COLUMNS // width), n)
    raise ValueError(f"blocks {width}x{depth} of {dtype} do not fit {memory_bytes} bytes")


def piece_starts(lists: BlockLists, tiles: Tiles, n_blocks: int) -> Int[Array, " starts"]:
    """Where the entries of each piece of each line begin, `[lines * (pieces + 1)]`, flattened."""
    n_lines = lists.order.size
    line = insertion_points(lists.start, jnp.arange(lists.across.size), side="right") - 1
    place = line * n_blocks + lists.across
    firsts = jnp.minimum(jnp.arange(tiles.pieces + 1) * tiles.blocks, n_blocks)
    wanted = jnp.arange(n_lines)[:, None] * n_blocks + firsts
    return insertion_points(place, wanted.reshape(-1))
