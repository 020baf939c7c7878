"""The mask of one kernel: which of its blocks are kept."""

import dataclasses
import functools
from typing import Any

import jax
from jaxtyping import Array, Bool

from pallas_kernels import layout
from sparsemlp.blocks import Block, block_grid


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("kept",),
    meta_fields=("kernel_shape", "block"),
)
@dataclasses.dataclass(frozen=True, eq=False)
class BlockMask:
    """The kept blocks of a kernel `[in, out]`, a pytree.

    Positions are data and the number of blocks is static, so a new mask never recompiles.

    Attributes:
      kept: int32 `[k]`, flat ids of the kept blocks, ascending, row-major over the block grid
        `[in / cols, out / rows]`.
      kernel_shape: `(in, out)`.
      block: `(rows, cols)` in the literature's `[out, in]` orientation: a tile of the kernel is
        `(cols, rows)`.
    """

    kept: Any
    kernel_shape: tuple[int, int]
    block: Block

    @property
    def grid_shape(self) -> tuple[int, int]:
        """The shape of the block grid, `(in / cols, out / rows)`."""
        return block_grid(self.kernel_shape, self.block)

    @property
    def n_blocks(self) -> int:
        """How many blocks the kernel has."""
        down, across = self.grid_shape
        return down * across

    @property
    def n_kept(self) -> int:
        """How many blocks are kept."""
        return self.kept.shape[-1]

    @property
    def density(self) -> float:
        """The share of the weights that is kept."""
        return self.n_kept / self.n_blocks

    def grid(self) -> Bool[Array, "down across"]:
        """The block grid `[in / cols, out / rows]` as booleans, True where a block is kept."""
        return layout.kept_grid(self.kept, self.grid_shape)

    def dense(self) -> Bool[Array, "in out"]:
        """The mask `[in, out]`, one boolean a weight, True where the weight is kept."""
        return layout.dense_mask(self.kept, self.kernel_shape, self.block)
