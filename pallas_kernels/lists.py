"""The kept blocks line by line, as kernels walk them.

A product needs the kept blocks of each block of outputs or of each block of inputs. A GPU starts
several kernels to find them, which take longer than the product of a small layer: so they can be
made once for all products that a mask is used in, and for layers that are alike together.
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class BlockLists(NamedTuple):
    """The kept blocks of each row of a block grid, or of each column; a line is either.

    Attributes:
      start: int32 `[n_lines + 1]`: line l has the entries `start[l]` to `start[l + 1]`.
      across: int32 `[k]`: of each entry, where it lies in its line; ascending in a line.
      place: int32 `[k]`: of each entry, which of the kept ids it is.
      order: int32 `[n_lines]`: the lines, the longest first, equal ones ascending.
      before: int32 `[n_blocks + 1]`: of each block, line by line, how many entries lie before it;
        behind the last block, all.
    """

    start: Int[Array, " lines_and_end"]
    across: Int[Array, " k"]
    place: Int[Array, " k"]
    order: Int[Array, " lines"]
    before: Int[Array, " blocks_and_end"]

    def grid(self) -> Bool[Array, "lines across"]:
        """Where blocks are kept, line by line."""
        return (self.before[1:] > self.before[:-1]).reshape(self.order.size, -1)


class ListedBlocks(NamedTuple):
    """The kept blocks of one of several kernels that are alike, with the lists of all of them.

    On a GPU it is a launch to take a kernel's own lists out. So there are engines that read them
    where they are, and all that is computed of them is the same for every one of these kernels.

    Attributes:
      ids: int32 `[n, k]`: of each kernel the flat ids, ascending.
      rows: of each kernel, the first axis of every array, block row by block row: the kept blocks
        of each block of inputs.
      columns: likewise block column by block column: those of each block of outputs.
      which: int32 `[1]`: which of the kernels this one is.
    """

    ids: Int[Array, "kernels k"]
    rows: BlockLists
    columns: BlockLists
    which: Int[Array, "1"]

    @property
    def size(self) -> int:
        """How many blocks this kernel keeps."""
        return self.ids.shape[1]

    def own(self, of_all: Any) -> Any:
        """What belongs to this kernel of arrays whose first axis is over all of them."""
        return jax.tree.map(lambda a: a[self.which[0]], of_all)


KeptBlocks = Int[Array, " k"] | ListedBlocks
"""The kept blocks of a kernel: their flat ids, ascending, or those with their lists."""


def list_alike(ids: Int[Array, "kernels k"], grid_shape: tuple[int, int]) -> list[ListedBlocks]:
    """The kept blocks of each of several kernels that are alike, whose lists are made together.

    Args:
      ids: int32 `[n, k]`: of each kernel flat ids, ascending, each at most once.
      grid_shape: of each, `(in / cols, out / rows)`.
    """
    rows, columns = (
        jax.vmap(functools.partial(make, grid_shape=grid_shape))(ids)
        for make in (list_rows, list_columns)
    )
    return [ListedBlocks(ids, rows, columns, jnp.full(1, i, jnp.int32)) for i in range(len(ids))]


def listed(kept: KeptBlocks, grid_shape: tuple[int, int]) -> ListedBlocks:
    """The kept blocks with their lists, made now if they were not before."""
    return kept if isinstance(kept, ListedBlocks) else list_alike(kept[None], grid_shape)[0]


def ids_of(kept: KeptBlocks) -> Int[Array, " k"]:
    """The flat ids of kept blocks."""
    return kept.own(kept.ids) if isinstance(kept, ListedBlocks) else kept


def list_rows(kept: KeptBlocks, grid_shape: tuple[int, int]) -> BlockLists:
    """The kept blocks row by row: those of one block of inputs (compressed sparse rows).

    Args:
      kept: ids, each at most once, or with their lists.
      grid_shape: `(in / cols, out / rows)`.
    """
    if isinstance(kept, ListedBlocks):
        return kept.own(kept.rows)
    n_rows, n_columns = grid_shape
    places = jnp.arange(kept.size, dtype=jnp.int32)
    return _lists(kept, places, before_each(kept, n_rows * n_columns), n_rows)


def list_columns(kept: KeptBlocks, grid_shape: tuple[int, int]) -> BlockLists:
    """The kept blocks column by column: those of one block of outputs.

    Args:
      kept: ids, each at most once, or with their lists.
      grid_shape: `(in / cols, out / rows)`.
    """
    if isinstance(kept, ListedBlocks):
        return kept.own(kept.columns)
    n_rows, n_columns = grid_shape
    n_blocks = n_rows * n_columns
    turned = jnp.sort(kept % n_columns * n_rows + kept // n_columns)
    place = before_each(kept, n_blocks)[turned % n_rows * n_columns + turned // n_rows]
    return _lists(turned, place, before_each(turned, n_blocks), n_columns)


def _lists(entries: Array, place: Array, before: Array, n_lines: int) -> BlockLists:
    length = (before.size - 1) // n_lines
    start = before[::length]
    order = jnp.argsort(start[:-1] - start[1:], stable=True).astype(jnp.int32)
    return BlockLists(start, (entries % length).astype(jnp.int32), place, order, before)


_FEW_PAIRS = 2**26
"""Comparisons that are made at once, in one kernel; where there are more, several make fewer."""


def before_each(ids: Int[Array, " k"], n_blocks: int) -> Int[Array, " blocks_and_end"]:
    """How many of some ids are smaller than each number from 0 to `n_blocks`, int32.

    Args:
      ids: ascending, each at most once, from 0 to `n_blocks` - 1.
      n_blocks: how many blocks there are.
    """
    if ids.size * (n_blocks + 1) <= _FEW_PAIRS:
        return insertion_points(ids, jnp.arange(n_blocks + 1, dtype=ids.dtype))
    is_kept = jnp.zeros(n_blocks, jnp.int32)
    is_kept = is_kept.at[ids].set(1, indices_are_sorted=True, unique_indices=True)
    return jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(is_kept, dtype=jnp.int32)])


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
