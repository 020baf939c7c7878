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
    """Kept blocks that are computed together, of one block column or one block row.

    Attributes:
      line: int32 `[n_groups]`: which.
      length: int32 `[n_groups]`: how many they are; 0 for a group that is not there.
      across: int32 `[n_groups * n_together]`: where in its line each lies; where any other block
        does, if a group is short.
      place: int32 `[k]`: of each kept block, which entry of `across` it is.
    """

    line: Int[Array, " groups"]
    length: Int[Array, " groups"]
    across: Int[Array, " entries"]
    place: Int[Array, " k"]


def n_groups_of(n_kept: int, n_lines: int, n_together: int) -> int:
    """How many groups there are at most: each line has at most one short one."""
    return min(n_kept, (n_kept + n_lines * (n_together - 1)) // n_together)


def group(
    kept: ListedBlocks, grid_shape: tuple[int, int], n_together: int, *, by_rows: bool
) -> Groups:
    """Puts the kept blocks of each line together, a few at a time.

    Args:
      kept: the kept blocks.
      grid_shape: `(in / cols, out / rows)`.
      n_together: how many.
      by_rows: whether lines are block rows, not block columns.

    Returns:
      The groups of all kernels that `kept` has the lists of: every array has an axis more, the
      first, over the kernels.
    """
    n_columns = grid_shape[1]
    of_block = kept.ids // n_columns, kept.ids % n_columns
    own_line, own_across = of_block if by_rows else of_block[::-1]
    of_one = functools.partial(_group, n_together=n_together)
    return jax.vmap(of_one)(own_line, own_across, kept.rows if by_rows else kept.columns)


def _group(
    own_line: Int[Array, " k"], own_across: Int[Array, " k"], lists: BlockLists, n_together: int
) -> Groups:
    k, n_lines = own_line.size, lists.order.size
    if n_together == 1:
        return Groups(own_line, jnp.ones(k, jnp.int32), own_across, jnp.arange(k, dtype=jnp.int32))
    n_groups = n_groups_of(k, n_lines, n_together)
    lengths = lists.start[1:] - lists.start[:-1]
    groups_before = _sums_before(-(-lengths // n_together))
    index = jnp.arange(n_groups)
    line = insertion_points(groups_before[1:], index, side="right")
    exists = line < n_lines
    line = jnp.minimum(line, n_lines - 1)
    entry = lists.start[line] + (index - groups_before[line]) * n_together
    length = jnp.where(exists, jnp.clip(lists.start[line + 1] - entry, 0, n_together), 0)
    entries = jnp.clip(entry[:, None] + jnp.arange(n_together), 0, k - 1).reshape(-1)
    in_line = (lists.before.size - 1) // n_lines
    inside = lists.before[own_line * in_line + own_across] - lists.start[own_line]
    place = groups_before[own_line] * n_together + inside
    line, length, place = (a.astype(jnp.int32) for a in (line, length, place))
    return Groups(line, length, lists.across[entries], place)


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
    is_alone = blocks.shape[0] == groups.line.shape[1]
    place = None if is_alone else kept.own(groups.place)
    return spread_gradient(blocks, kept, layer.kernel_shape, place)
