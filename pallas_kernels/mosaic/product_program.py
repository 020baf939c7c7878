"""A product with a block-sparse operand as a part of a kernel for two layers on Hopper.

A program owns some rows of the result and a share of its block columns. The rows of the dense
operand that it needs, the panel, stay in shared memory; the kept blocks of one column after another
stream through a ring of buffers. One warpgroup starts the copies, the others multiply: rows above
each other, or block columns abreast, whose blocks share a buffer of the ring. A block that is
dropped is never loaded.

Programs of a cluster have other rows and the same columns, and take the same steps: each loads a
part of every block of weights, into the rings of all. A buffer is free once all have read it.

A panel that does not fit is cut along the contracted features. Its pieces take turns in two
buffers, and several columns are summed at once, so that a piece serves them all; of a piece the
blocks are loaded that any of these columns needs.

What the copying warpgroup does is in `product_copies`, what the others do in `product_sums`.
"""

import dataclasses
from typing import Any, NamedTuple

from jaxtyping import Array

from pallas_kernels.mosaic.product_share import Share
from pallas_kernels.mosaic.product_tiles import Tiles


class Memory(NamedTuple):
    """What the warpgroups of a program share.

    Attributes:
      panel: `[buffers, blocks, rows, depth]` of the dense operand.
      ring: `[stages, abreast, ...]`, kept blocks of weights.
      staging: `[n_compute, 64, width]` of the result, on their way out.
      panel_full: for each buffer, the barrier that opens when it is there.
      panel_free: that opens when no warpgroup reads it any more.
      ring_full: the same of the ring.
      ring_free: the same of the ring; where programs load weights together, no warpgroup of any.
    """

    panel: Any
    ring: Any
    staging: Any
    panel_full: Any
    panel_free: Any
    ring_full: Any
    ring_free: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A program, as each of its warpgroups knows it.

    Attributes:
      share: which block columns it computes.
      memory: what its warpgroups share.
      x: the dense operand, in global memory as all four.
      kernel: the block-sparse one.
      bias: added to the sums, or None.
      y: the result.
      first_row: its first row of x and y.
      width: features of a block of the result.
      depth: features of a block that are contracted.
      turned: whether a block of the kernel lies as `[width, depth]`.
      with_gelu: whether it is GELU of the sums that is written.
    """

    share: Share
    memory: Memory
    x: Any
    kernel: Any
    bias: Any
    y: Any
    first_row: Array
    width: int
    depth: int
    turned: bool
    with_gelu: bool

    @property
    def tiles(self) -> Tiles:
        """How the product is cut."""
        return self.share.tiles

    @property
    def is_whole(self) -> bool:
        """Whether the panel is one piece, which is there once and for all."""
        return self.tiles.pieces == 1
