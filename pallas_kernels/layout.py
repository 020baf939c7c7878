"""From the ids of kept blocks to the layouts that products need.

Ids are flat, ascending and row-major over the block grid `[in / cols, out / rows]` of a kernel
`[in, out]` that is cut into blocks `(rows, cols)`, rows over outputs.
"""

import math
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.lists import KeptBlocks, ListedBlocks, list_rows

Kept = Int[Array, " k"] | Bool[Array, "down across"]
"""The kept blocks of a kernel: their flat ids, or the block grid as booleans."""


_FEW_SCATTERED = 2**17
"""Comparisons that are made at once in the place of a scatter, two kernel launches on a GPU."""


def kept_grid(kept: KeptBlocks, grid_shape: tuple[int, int]) -> Bool[Array, "down across"]:
    """The block grid as booleans, True where the block is kept.

    Args:
      kept: int32 `[k]`, flat ids, ascending, each at most once; or with their lists.
      grid_shape: `(in / cols, out / rows)`.
    """
    if isinstance(kept, ListedBlocks):
        return list_rows(kept, grid_shape).grid()
    n_blocks = grid_shape[0] * grid_shape[1]
    if n_blocks * kept.size <= _FEW_SCATTERED:
        ids = jnp.arange(n_blocks, dtype=kept.dtype)
        return jnp.any(kept[:, None] == ids[None, :], axis=0).reshape(grid_shape)
    flat = jnp.zeros(n_blocks, bool)
    return flat.at[kept].set(True, indices_are_sorted=True, unique_indices=True).reshape(grid_shape)


def dense_mask(
    kept: Kept | ListedBlocks, kernel_shape: tuple[int, int], block: tuple[int, int]
) -> Bool[Array, "in out"]:
    """The mask of a kernel, one boolean a weight, True where the weight is kept.

    Args:
      kept: int32 `[k]`, flat ids of kept blocks, with their lists or without, or the block grid as
        booleans.
      kernel_shape: `(in, out)`.
      block: `(rows, cols)`, rows over outputs; a tile of the kernel is `(cols, rows)`.
    """
    rows, cols = block
    in_features, out_features = kernel_shape
    if isinstance(kept, ListedBlocks) or kept.dtype != jnp.bool_:
        kept = kept_grid(kept, (in_features // cols, out_features // rows))
    tiles = jnp.broadcast_to(
        kept[:, None, :, None], (in_features // cols, cols, out_features // rows, rows)
    )
    return tiles.reshape(kernel_shape)


def take_blocks(
    a: Float[Array, "m n"], ids: Int[Array, " k"], block: tuple[int, int]
) -> Float[Array, "k height width"]:
    """Some blocks of a matrix, one after the other.

    Args:
      a: `[m, n]`.
      ids: int32 `[k]`, flat ids, row-major over the block grid `[m / height, n / width]`.
      block: `(height, width)` of a block, in the orientation of `a`.
    """
    height, width = block
    across = a.shape[1] // width
    tiles = a.reshape(a.shape[0] // height, height, across, width)
    return tiles[ids // across, :, ids % across]


def spread_blocks(
    values: Float[Array, "k height width"], ids: Int[Array, " k"], shape: tuple[int, int]
) -> Float[Array, "m n"]:
    """The matrix that `take_blocks` took the blocks from, with zeros in all others.

    Args:
      values: `[k, height, width]`.
      ids: int32 `[k]`, as for `take_blocks`, each at most once.
      shape: `(m, n)`.
    """
    _, height, width = values.shape
    across = shape[1] // width
    tiles = jnp.zeros((shape[0] // height, height, across, width), values.dtype)
    return tiles.at[ids // across, :, ids % across].set(values, unique_indices=True).reshape(shape)


def spread_gradient(
    blocks: Float[Array, "n height width"],
    kept: KeptBlocks,
    kernel_shape: tuple[int, int],
    place: Int[Array, " k"] | None = None,
) -> Float[Array, "in out"]:
    """A kernel's gradient from those of its kept blocks, exactly zero in the dropped ones.

    Every weight asks for its block. So on a GPU it is a part of whatever reads the gradient, and
    need not be written.

    Args:
      blocks: `[n, cols, rows]`.
      kept: the kept blocks.
      kernel_shape: `(in, out)`.
      place: int32 `[k]`, which of `blocks` each kept one is; None: they are in the order of ids.
    """
    n, height, width = blocks.shape
    if not n:
        return jnp.zeros(kernel_shape, blocks.dtype)
    down, across = kernel_shape[0] // height, kernel_shape[1] // width
    before = list_rows(kept, (down, across)).before
    number = jnp.minimum(before[:-1], kept.size - 1)
    number = number if place is None else place[number]
    found = blocks.at[number].get(mode="clip")
    found = jnp.where((before[1:] > before[:-1])[:, None, None], found, 0)
    return found.reshape(down, across, height, width).swapaxes(1, 2).reshape(kernel_shape)


def spread_activation(
    values: Float[Array, "k height width"],
    ids: Int[Array, " k"],
    shape: tuple[int, ...],
    axis: Literal[-1, -2],
) -> Float[Array, "..."]:
    """An activation from its kept blocks, zero where blocks were dropped.

    Args:
      values: `[k, height, width]`; columns of blocks run along `axis`, rows over all other axes
        flattened in their order.
      ids: int32 `[k]`, as for `take_blocks`.
      shape: of the activation.
      axis: the axis that its layer contracts.
    """
    n_in = shape[axis]
    others = [size for i, size in enumerate(shape) if i != len(shape) + axis]
    rows = spread_blocks(values, ids, (math.prod(others), n_in))
    return jnp.moveaxis(rows.reshape(*others, n_in), -1, axis)
