"""Kept blocks of dW that are computed together: tensor cores multiply 64 rows at least."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.layout import insertion_points, list_columns, spread_blocks
from pallas_kernels.sparse_layer import SparseLayer


class Groups(NamedTuple):
    """Kept blocks that are computed together, of one block column.

    Attributes:
      column: int32 `[n_groups]`: which.
      length: int32 `[n_groups]`: how many they are; 0 for a group that is not there.
      row: int32 `[n_groups * n_together]`: the block row of each; of any block where a group is
        short.
      place: int32 `[k]`: of each kept block, which entry of `row` it is.
    """

    column: Int[Array, " groups"]
    length: Int[Array, " groups"]
    row: Int[Array, " entries"]
    place: Int[Array, " k"]


def n_groups_of(n_kept: int, n_columns: int, n_together: int) -> int:
    """How many groups there are at most: each column has at most one short one."""
    return min(n_kept, (n_kept + n_columns * (n_together - 1)) // n_together)


def group(kept: Int[Array, " k"], grid_shape: tuple[int, int], n_together: int) -> Groups:
    """Puts the kept blocks of each block column together, a few at a time.

    Args:
      kept: int32 `[k]`, flat ids, ascending.
      grid_shape: `(in / cols, out / rows)`.
      n_together: how many.
    """
    k, n_columns = kept.size, grid_shape[1]
    if n_together == 1:
        ones, places = jnp.ones(k, jnp.int32), jnp.arange(k, dtype=jnp.int32)
        return Groups(kept % n_columns, ones, kept // n_columns, places)
    n_groups = n_groups_of(k, n_columns, n_together)
    lists = list_columns(kept, grid_shape)
    lengths = lists.start[1:] - lists.start[:-1]
    ends = jnp.cumsum(-(-lengths // n_together))
    index = jnp.arange(n_groups)
    column = insertion_points(ends, index, side="right")
    exists = column < n_columns
    column = jnp.minimum(column, n_columns - 1)
    before = jnp.concatenate([jnp.zeros(1, ends.dtype), ends])
    entry = lists.start[column] + (index - before[column]) * n_together
    length = jnp.where(exists, jnp.clip(lists.start[column + 1] - entry, 0, n_together), 0)
    entries = jnp.clip(entry[:, None] + jnp.arange(n_together), 0, k - 1).reshape(-1)
    inside = jnp.arange(k) - lists.start[lists.line]
    place = jnp.zeros(k, jnp.int32)
    place = place.at[lists.place].set(
        (before[lists.line] * n_together + inside).astype(jnp.int32), unique_indices=True
    )
    column, length = (a.astype(jnp.int32) for a in (column, length))
    return Groups(column, length, lists.across[entries], place)


def spread_parts(
    parts: Float[Array, "shares entries height width"],
    groups: Groups,
    kept: Int[Array, " k"],
    layer: SparseLayer,
    *,
    is_swapped: bool,
) -> Float[Array, "in out"]:
    """`dW` from the sums of every share of the rows.

    Args:
      parts: float32, for every entry of the groups its block, or that turned.
      groups: as they were computed together.
      kept: ids of the kept blocks.
      layer: the layer.
      is_swapped: whether blocks are turned.
    """
    blocks = jnp.sum(parts, axis=0).astype(layer.dtype)
    blocks = blocks.swapaxes(1, 2) if is_swapped else blocks
    if blocks.shape[0] != groups.column.size:
        blocks = blocks[groups.place]
    return spread_blocks(blocks, kept, layer.kernel_shape)
