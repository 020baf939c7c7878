"""The mask of one kernel: which of its blocks are kept, by their ids or as a grid."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels import SparseLayer, layout
from pallas_kernels.lists import KeptBlocks, ListedBlocks, ids_of
from sparsemlp.blocks import Block, block_grid
from sparsemlp.serialization import serializable


class KeptByProduct(NamedTuple):
    """The kept blocks that each product of a layer uses: all `KeptBlocks`, or all boolean grids."""

    product: Any
    input_gradient: Any
    kernel_gradient: Any


@dataclasses.dataclass(frozen=True, eq=False)
class _Blocks:
    """What both kinds of mask have: kept blocks, of a kernel that is cut into blocks."""

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


@serializable
@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class BlockMask(_Blocks):
    """The kept blocks of a kernel `[in, out]`, a pytree.

    Positions are data and the number of blocks is static, so a new mask never recompiles.

    Attributes:
      kept: int32 `[k]`, flat ids of the kept blocks, ascending, row-major over the block grid
        `[in / cols, out / rows]`.
      kernel_shape: `(in, out)`.
      block: `(rows, cols)` in the literature's `[out, in]` orientation: a tile of the kernel is
        `(cols, rows)`.
      lists: the same blocks with their lists, as `with_lists` adds them. A mask that
        `dataclasses.replace` makes of this one has none.
    """

    lists: ListedBlocks | None = dataclasses.field(default=None, init=False)

    @classmethod
    def of(cls, kept: KeptBlocks, kernel_shape: tuple[int, int], block: Block) -> "BlockMask":
        """The mask of kept blocks, with their lists or without."""
        lists = kept if isinstance(kept, ListedBlocks) else None
        return cls(ids_of(kept), kernel_shape, block).with_lists(lists)

    def with_lists(self, lists: ListedBlocks | None) -> "BlockMask":
        """This mask with the lists of its kept blocks, for engines that walk them.

        Without, every product makes those that it needs. `mask_trees.list_masks` makes them.
        """
        return self.tree_unflatten((self.kernel_shape, self.block), (self.kept, lists))

    def tree_flatten_with_keys(self) -> tuple[Any, tuple[tuple[int, int], Block]]:
        """The arrays, positions being data, and what is static."""
        names = (jax.tree_util.GetAttrKey(name) for name in ("kept", "lists"))
        children = tuple(zip(names, (self.kept, self.lists), strict=True))
        return children, (self.kernel_shape, self.block)

    @classmethod
    def tree_unflatten(
        cls, static: tuple[tuple[int, int], Block], children: Sequence[Any]
    ) -> "BlockMask":
        """The mask of what `tree_flatten_with_keys` took apart."""
        kept, lists = children
        mask = cls(kept, *static)
        object.__setattr__(mask, "lists", lists)
        return mask

    @property
    def kept_blocks(self) -> KeptBlocks:
        """The kept blocks, with their lists if they were made."""
        return jnp.asarray(self.kept, jnp.int32) if self.lists is None else self.lists

    @property
    def n_kept(self) -> int:
        """How many blocks are kept."""
        return self.kept.shape[-1]

    def sparse_layer(self, axis: Literal[-1, -2], dtype: str) -> SparseLayer:
        """What an engine is told of the kernel, used along this axis of x, in this dtype."""
        return SparseLayer(self.kernel_shape, self.block, self.n_kept, axis, dtype)

    @property
    def density(self) -> float:
        """The share of the weights that is kept."""
        return self.n_kept / self.n_blocks

    @property
    def keeps_all(self) -> bool:
        """Whether it is known when it is traced that every block is kept: the kernel is dense."""
        return self.n_kept == self.n_blocks

    @property
    def says_backward(self) -> bool:
        """False: the layer says what the backward pass uses."""
        return False

    @property
    def by_product(self) -> KeptByProduct:
        """The kept blocks for each of the three products."""
        return KeptByProduct(self.kept_blocks, self.kept_blocks, self.kept_blocks)

    def grid(self) -> Bool[Array, "down across"]:
        """The block grid `[in / cols, out / rows]` as booleans, True where a block is kept."""
        return layout.kept_grid(self.kept_blocks, self.grid_shape)

    def dense(self) -> Bool[Array, "in out"]:
        """The mask `[in, out]`, one boolean a weight, True where the weight is kept."""
        return layout.dense_mask(self.kept_blocks, self.kernel_shape, self.block)


@serializable
@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("kept", "in_input_gradient", "in_kernel_gradient"),
    meta_fields=("kernel_shape", "block"),
)
@dataclasses.dataclass(frozen=True, eq=False)
class GridMask(_Blocks):
    """The kept blocks of a kernel `[in, out]` as booleans, a pytree: even their number is data.

    Kernels may share a budget of blocks, and masks of different ratios can be stacked and trained
    in one program under `jax.vmap`. No shape tells what is dropped, so the engine `reference`
    alone computes with it (`auto` takes that one).

    What the backward pass uses of the mask may be data as well: with both flags the `backward` of
    the layer says nothing. `masked` is (True, True), `dense` (False, False), `straight_through`
    (True, False).

    Attributes:
      kept: bool `[in / cols, out / rows]`, True where a block is kept.
      kernel_shape: `(in, out)`.
      block: `(rows, cols)`, as of a `BlockMask`.
      in_input_gradient: bool scalar, whether dX is computed from the masked kernel; None: as the
        layer says.
      in_kernel_gradient: bool scalar, whether dW is zero in dropped blocks; None if and only if
        the other one is.
    """

    in_input_gradient: Any = None
    in_kernel_gradient: Any = None

    @property
    def n_kept(self) -> Int[Array, ""]:
        """How many blocks are kept, int32."""
        return jnp.sum(self.kept, dtype=jnp.int32)

    def sparse_layer(self, axis: Literal[-1, -2], dtype: str) -> SparseLayer:
        """As that of a `BlockMask`; any block may be kept, so its `n_kept` is the number of all."""
        return SparseLayer(self.kernel_shape, self.block, self.n_blocks, axis, dtype)

    @property
    def density(self) -> Float[Array, ""]:
        """The share of the weights that is kept, float32."""
        return self.n_kept.astype(jnp.float32) / self.n_blocks

    @property
    def keeps_all(self) -> bool:
        """False: what is kept is not known when it is traced."""
        return False

    @property
    def says_backward(self) -> bool:
        """Whether this mask, and not its layer, says what the backward pass uses of it."""
        return self.in_input_gradient is not None

    @property
    def by_product(self) -> KeptByProduct:
        """The grid for each of the three products; one that does not use the mask has all True."""
        if not self.says_backward:
            return KeptByProduct(self.kept, self.kept, self.kept)
        return KeptByProduct(
            self.kept,
            self.kept | ~jnp.asarray(self.in_input_gradient),
            self.kept | ~jnp.asarray(self.in_kernel_gradient),
        )

    def grid(self) -> Bool[Array, "down across"]:
        """The block grid `[in / cols, out / rows]` as booleans, True where a block is kept."""
        return self.kept

    def dense(self) -> Bool[Array, "in out"]:
        """The mask `[in, out]`, one boolean a weight, True where the weight is kept."""
        return layout.dense_mask(self.kept, self.kernel_shape, self.block)


Mask = BlockMask | GridMask
