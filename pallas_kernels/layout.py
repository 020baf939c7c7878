"""From the ids of kept blocks to the layouts that products need.

Ids are flat, ascending and row-major over the block grid `[in / cols, out / rows]` of a kernel
`[in, out]` that is cut into blocks `(rows, cols)`, rows over outputs.
"""

import math
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Kept = Int[Array, " k"] | Bool[Array, "down across"]
"""The kept blocks of a kernel: their flat ids, or the block grid as booleans."""


_FEW_SCATTERED = 2**17
"""Comparisons that are made at once in the place of a scatter, two kernel launches on a GPU."""


def kept_grid(kept: Int[Array, " k"], grid_shape: tuple[int, int]) -> Bool[Array, "down across"]:
    """The block grid as booleans, True where the block is kept.

    Args:
      kept: int32 `[k]`, flat ids, ascending, each at most once.
      grid_shape: `(in / cols, out / rows)`.
    """
    n_blocks = grid_shape[0] * grid_shape[1]
    if n_blocks * kept.size <= _FEW_SCATTERED:
        ids = jnp.arange(n_blocks, dtype=kept.dtype)
        return jnp.any(kept[:, None] == ids, axis=0).reshape(grid_shape)
    flat = jnp.zeros(n_blocks, bool)
    return flat.at[kept].set(True, indices_are_sorted=True, unique_indices=True).reshape(grid_shape)


def dense_mask(
    kept: Kept, kernel_shape: tuple[int, int], block: tuple[int, int]
) -> Bool[Array, "in out"]:
    """The mask of a kernel, one boolean a weight, True where the weight is kept.

    Args:
      kept: int32 `[k]`, flat ids of kept blocks, or the block grid as booleans.
      kernel_shape: `(in, out)`.
      block: `(rows, cols)`, rows over outputs; a tile of the kernel is `(cols, rows)`.
    """
    rows, cols = block
    in_features, out_features = kernel_shape
    is_grid = kept.dtype == jnp.bool_
    grid = kept if is_grid else kept_grid(kept, (in_features // cols, out_features // rows))
    tiles = jnp.broadcast_to(
        grid[:, None, :, None], (in_features // cols, cols, out_features // rows, rows)
    )
    return tiles.reshape(kernel_shape)


_FEW_PAIRS = 2**26
"""Comparisons that are made at once; where there are more, a binary search makes fewer."""


class BlockLists(NamedTuple):
    """The kept blocks of each row of a block grid, or of each column; a line is either.

    Attributes:
      start: int32 `[n_lines + 1]`: line l has the entries `start[l]` to `start[l + 1]`.
      line: int32 `[k]`: of each entry, its line; ascending.
      across: int32 `[k]`: of each entry, where it lies in its line; ascending in a line.
      place: int32 `[k]`: of each entry, which of the kept ids it is.
      order: int32 `[n_lines]`: the lines, the longest first, equal ones ascending.
    """

    start: Int[Array, " lines_and_end"]
    line: Int[Array, " k"]
    across: Int[Array, " k"]
    place: Int[Array, " k"]
    order: Int[Array, " lines"]


def list_rows(kept: Int[Array, " k"], grid_shape: tuple[int, int]) -> BlockLists:
    """The kept blocks row by row: those of one block of inputs (compressed sparse rows).

    Args:
      kept: int32 `[k]`, flat ids, ascending, each at most once.
      grid_shape: `(in / cols, out / rows)`.
    """
    n_rows, n_columns = grid_shape
    places = jnp.arange(kept.size, dtype=jnp.int32)
    return _lists(kept // n_columns, kept % n_columns, places, n_rows)


def list_columns(
    kept: Int[Array, " k"],
    grid_shape: tuple[int, int],
    wanted: Bool[Array, " across"] | None = None,
) -> BlockLists:
    """The kept blocks column by column: those of one block of outputs.

    Args:
      kept: int32 `[k]`, flat ids, ascending, each at most once.
      grid_shape: `(in / cols, out / rows)`.
      wanted: which columns are listed; the others have no entries, and what they keep stands behind
        the last one. None for all.
    """
    n_columns = grid_shape[1]
    column = kept % n_columns
    if wanted is not None:
        column = jnp.where(wanted[column], column, n_columns)
    place = jnp.argsort(column, stable=True).astype(jnp.int32)
    return _lists(column[place], kept[place] // n_columns, place, n_columns)


def _lists(line: Array, across: Array, place: Array, n_lines: int) -> BlockLists:
    start = insertion_points(line, jnp.arange(n_lines + 1, dtype=line.dtype))
    order = jnp.argsort(start[:-1] - start[1:], stable=True).astype(jnp.int32)
    line, across = line.astype(jnp.int32), across.astype(jnp.int32)
    return BlockLists(start, line, across, place, order)


def insertion_points(
    ascending: Int[Array, " n"],
    values: Int[Array, " m"],
    side: Literal["left", "right"] = "left",
) -> Int[Array, " m"]:
    """Where values belong in an ascending array, int32, as `jnp.searchsorted` says.

    All pairs are compared at once where they are few. A binary search is a loop, and on a GPU each
    of its turns is a kernel launch of its own, longer than all comparisons of a layer's blocks.
    """
    few = ascending.size * values.size <= _FEW_PAIRS
    method = "compare_all" if few else "scan"
    return jnp.searchsorted(ascending, values, side=side, method=method).astype(jnp.int32)


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
