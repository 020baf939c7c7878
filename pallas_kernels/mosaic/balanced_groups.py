"""The groups of kept blocks whose gradients are computed together, in their order.

Each line of blocks is cut into groups of like lengths. Where db is computed as well, block columns
without a kept block follow, each a group of its own. What is known of the groups without a mask is
little: how many lie before each line is found in a table that XLA makes in one kernel.

A step of a group loads a buffer for each of its blocks, and one that they share; that of a column
without a block dy alone. It counts as many loads, or some more: for what takes as long however many
blocks there are.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from pallas_kernels.lists import BlockLists, ListedBlocks
from pallas_kernels.mosaic.gradient_operands import Group
from pallas_kernels.mosaic.warpgroup import Table


def table_of(
    blocks: ListedBlocks, n_together: int, *, by_rows: bool, with_bias: bool
) -> Int[Array, "kernels lines_and_2"]:
    """How many groups lie before each line of blocks, in all lines, and with columns without any.

    Args:
      blocks: the kept blocks.
      n_together: how many of one line are computed together at most.
      by_rows: whether lines are block rows, not block columns.
      with_bias: whether columns without a kept block are groups as well.

    Returns:
      Int32 `[kernels, n_lines + 2]`, of all kernels that `blocks` has the lists of.
    """

    def lengths(lists: BlockLists) -> Array:
        return lists.start[:, 1:] - lists.start[:, :-1]

    of_line = -(-lengths(blocks.rows if by_rows else blocks.columns) // n_together)
    of_column = (lengths(blocks.columns) == 0).astype(of_line.dtype) * with_bias
    n_lines, n_all = of_line.shape[1], max(of_line.shape[1], of_column.shape[1])
    of_line, of_column = (
        jnp.pad(a, ((0, 0), (0, n_all - a.shape[1])))[:, None] for a in (of_line, of_column)
    )
    # Sums of what is chosen are one kernel on a GPU; a running sum would be several.
    end = jnp.arange(n_lines + 2)[:, None]
    before = jnp.where(jnp.arange(n_all) < end, of_line, 0)
    behind = jnp.where(end == n_lines + 1, of_column, 0)
    return jnp.sum(before + behind, axis=2).astype(jnp.int32)


class Counted(NamedTuple):
    """A group and what its steps count.

    Attributes:
      group: its number.
      before: loads that a step of each group before it counts, in all.
      each: loads that a step of its own counts.
    """

    group: Array
    before: Array
    each: Array


class _Line(NamedTuple):
    """A line of blocks.

    Attributes:
      entry: its first entry in the lists of kept blocks.
      length: how many kept blocks it has.
      before: how many groups lie before it.
      n: how many groups it has.
      beside: as of `Groups`.
    """

    entry: Array
    length: Array
    before: Array
    n: Array
    beside: int

    def begin(self, index: Array) -> Array:
        """How many of its blocks lie before one of its groups."""
        return jax.lax.div(index * self.length, jnp.maximum(self.n, 1))

    def n_blocks(self, index: Array) -> Array:
        """How many blocks one of its groups has."""
        return self.begin(index + 1) - self.begin(index)

    def counted(self, index: Array) -> Counted:
        """One of its groups."""
        group = self.before + index
        before = group * self.beside + self.entry + self.begin(index)
        return Counted(group, before, self.beside + self.n_blocks(index))


class Groups(NamedTuple):
    """The groups of one kernel.

    Attributes:
      before: `table_of` its kept blocks.
      start: of each line, its first entry in the lists of these.
      beside: loads that a step counts beside those of its blocks, one at least.
    """

    before: Table
    start: Table
    beside: int

    @property
    def n_lines(self) -> int:
        """Lines of blocks."""
        return self.before.size - 2

    @property
    def n(self) -> Array:
        """How many groups have kept blocks."""
        return self.before.read(jnp.int32(self.n_lines))

    @property
    def n_all(self) -> Array:
        """How many there are with columns without a kept block."""
        return self.before.read(jnp.int32(self.n_lines + 1))

    @property
    def n_loads(self) -> Array:
        """Loads that a step of each group counts, in all."""
        return self.of_column(self.n_all - self.n).before

    def find(self, number: Array) -> Group:
        """A group of kept blocks by its number.

        Args:
          number: less than `n`.
        """
        which = self._which_line(number, self.before.read)
        line = self._line(which)
        index = number - line.before
        return Group(which, line.entry + line.begin(index), line.n_blocks(index))

    def of_block(self, which: Array, place: Array) -> tuple[Counted, Array]:
        """The group of a kept block, and which block of it this is.

        Args:
          which: its line. Of one without any kept block what is found is of no use.
          place: how many kept blocks of this line lie before it.
        """
        line = self._line(which)
        index = jax.lax.div((place + 1) * line.n - 1, jnp.maximum(line.length, 1))
        return line.counted(index), place - line.begin(index)

    def of_column(self, number: Array) -> Counted:
        """A column without a kept block, by its number among these."""
        n_kept, group = self.start.read(jnp.int32(self.n_lines)), self.n + number
        return Counted(group, n_kept + group * self.beside, jnp.int32(self.beside))

    def at(self, n_loads: Array) -> Counted:
        """The group behind so many loads, of one step of each group.

        Args:
          n_loads: less than `self.n_loads`.
        """
        behind = n_loads - self.of_column(jnp.int32(0)).before

        def before(line: Array) -> Array:
            return self.before.read(line) * self.beside + self.start.read(line)

        line = self._line(self._which_line(n_loads, before))
        # As a block is found in its line, of which each group is longer here by what is beside.
        place = n_loads - line.before * self.beside - line.entry
        length = line.length + line.n * self.beside
        index = jax.lax.div((place + 1) * line.n - 1, jnp.maximum(length, 1))
        column = self.of_column(jax.lax.div(behind, jnp.int32(self.beside)))
        both = zip(line.counted(index), column, strict=True)
        return Counted(*(jnp.where(behind < 0, *own) for own in both))

    def _line(self, which: Array) -> _Line:
        entry, before = self.start.read(which), self.before.read(which)
        length, n = self.start.read(which + 1) - entry, self.before.read(which + 1) - before
        return _Line(entry, length, before, n, self.beside)

    def _which_line(self, count: Array, before: Callable[[Array], Array]) -> Array:
        """The last line before which there is no more than this."""
        low, high = jnp.int32(0), jnp.int32(self.n_lines)
        for _ in range((self.n_lines - 1).bit_length()):
            middle = jax.lax.div(low + high, jnp.int32(2))
            is_low = before(middle) <= count
            low, high = jnp.where(is_low, middle, low), jnp.where(is_low, high, middle)
        return low
