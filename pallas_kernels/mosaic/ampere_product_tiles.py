"""How products with a block-sparse operand are cut into programs, panels and rings on Ampere."""

import dataclasses
import itertools
import math

from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.ampere import LEAST_ENTRIES, ROWS

STAGES = (4, 3, 2)
"""Buffers of the ring, the more the better: not tuned yet."""


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How a product is cut.

    Attributes:
      rows: of a program, a multiple of 64.
      stages: buffers of the ring.
      is_resident: whether the panel stays in shared memory.
    """

    rows: int
    stages: int
    is_resident: bool


def tiles_of(width: int, depth: int, n_blocks: int, n_rows: int, memory_bytes: int) -> Tiles | None:
    """How a product of bfloat16 is cut so that it fits shared memory: not tuned yet.

    A panel stays if there is any place for it, and two programs share a multiprocessor if they fit.

    Args:
      width: features of a block of the result.
      depth: features of a block that are contracted.
      n_blocks: how many blocks are contracted.
      n_rows: rows of the result.
      memory_bytes: of shared memory.

    Returns:
      None: nothing fits.
    """
    # Sums of 128 rows of 128 features would take every register.
    heights = (2 * ROWS, ROWS) if width < 2 * ROWS and n_rows > ROWS else (ROWS,)
    for is_resident, n_programs, stages, rows in itertools.product(
        (True, False), (2, 1), STAGES, heights
    ):
        parts = n_blocks if is_resident else stages
        shapes = ((parts, rows, depth), (stages, depth, width), (rows, width))
        taken = sum(launch.panel_bytes(shape, "bfloat16") for shape in shapes)
        # There are no barriers in memory, but the assembler takes a byte of its own.
        if taken + launch.BARRIERS_BYTES <= memory_bytes // n_programs:
            return Tiles(rows, stages, is_resident)
    return None


def fits(block: tuple[int, int], memory_bytes: int) -> bool:
    """Whether there are products of blocks of these sides, whatever the layer.

    Args:
      block: `(rows, cols)`.
      memory_bytes: of shared memory.
    """
    ways = (block, block[::-1])
    return math.prod(block) >= LEAST_ENTRIES and all(
        tiles_of(width, depth, 1 << 20, 1, memory_bytes) for width, depth in ways
    )
