"""Kept blocks of dW that are computed together: tensor cores multiply 64 rows at least."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.layout import spread_gradient
from pallas_kernels.lists import BlockLists, ListedBlocks, insertion_points
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


def group(kept: ListedBlocks, grid_shape: tuple[int, int], n_together: int) -> Groups:
    """Puts the kept blocks of each block column together, a few at a time.

    Args:
      kept: the kept blocks.
      grid_shape: `(in / cols, out / rows)`.
      n_together: how many.

    Returns:
      The groups of all kernels that `kept` has the lists of: every array has an axis more, the
      first, over the kernels.
    """
    of_one = functools.partial(_group, grid_shape=grid_shape, n_together=n_together)
    return jax.vmap(of_one)(kept.ids, kept.columns)


def _group(
    ids: Int[Array, " k"], lists: BlockLists, grid_shape: tuple[int, int], n_together: int
) -> Groups:
    k, (n_rows, n_columns) = ids.size, grid_shape
    own_row, own_column = ids // n_columns, ids % n_columns
    if n_together == 1:
        return Groups(own_column, jnp.ones(k, jnp.int32), own_row, jnp.arange(k, dtype=jnp.int32))
    n_groups = n_groups_of(k, n_columns, n_together)
    lengths = lists.start[1:] - lists.start[:-1]
    groups_before = _sums_before(-(-lengths // n_together))
    index = jnp.arange(n_groups)
    column = insertion_points(groups_before[1:], index, side="right")
    exists = column < n_columns
    column = jnp.minimum(column, n_columns - 1)
    entry = lists.start[column] + (index - groups_before[column]) * n_together
    length = jnp.where(exists, jnp.clip(lists.start[column + 1] - entry, 0, n_together), 0)
    entries = jnp.clip(entry[:, None] + jnp.arange(n_together), 0, k - 1).reshape(-1)
    inside = lists.before[own_column * n_rows + own_row] - lists.start[own_column]
    place = groups_before[own_column] * n_together + inside
    column, length, place = (a.astype(jnp.int32) for a in (column, length, place))
    return Groups(column, length, lists.across[entries], place)


def _sums_before(counts: Int[Array, " n"]) -> Int[Array, " n_and_end"]:
    """The sum of all before each, and of all: by comparisons, which are one kernel on a GPU."""
    is_before = jnp.arange(counts.size) < jnp.arange(counts.size + 1)[:, None]
    return jnp.sum(jnp.where(is_before, counts, 0), axis=1)


def spread_parts(
    parts: Float[Array, "shares entries height width"],
    groups: Groups,
    kept: ListedBlocks,
    layer: SparseLayer,
    *,
    is_swapped: bool,
) -> Float[Array, "in out"]:
    """`dW` from the sums of every share of the rows.

    Args:
      parts: float32, for every entry of the groups its block, or that turned.
      groups: as they were computed together, of all kernels.
      kept: the kept blocks.
      layer: the layer.
      is_swapped: whether blocks are turned.
    """
    blocks = jnp.sum(parts, axis=0).astype(layer.dtype)
    blocks = blocks.swapaxes(1, 2) if is_swapped else blocks
    is_alone = blocks.shape[0] == groups.column.shape[1]
    place = None if is_alone else kept.own(groups.place)
    return spread_gradient(blocks, kept, layer.kernel_shape, place)
