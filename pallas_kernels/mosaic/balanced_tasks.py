"""What a program of a balanced gradient computes, one part of a group of blocks after the other.

Every block column has its db added up with one block: its first kept one. A column without a kept
block is a group of its own, of which dy is loaded and db is written.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool

from pallas_kernels.mosaic.balanced_groups import Counted
from pallas_kernels.mosaic.balanced_shares import Part, Shares, Span
from pallas_kernels.mosaic.gradient_operands import Group
from pallas_kernels.mosaic.warpgroup import Table


class Columns(NamedTuple):
    """The kept blocks by block columns, for db.

    Attributes:
      start: of each column, its first entry in the lists by columns.
      across: of each of these entries, its block row.
      order: the columns, those without a kept block last.
    """

    start: Table
    across: Table
    order: Table


class Task(NamedTuple):
    """A part of a group, and what it is about.

    Attributes:
      part: which steps of which group.
      group: its kept blocks; none of a column without any.
      is_column: whether it is such a column.
      column: which one.
    """

    part: Part
    group: Group
    is_column: Bool[Array, ""]
    column: Array


@dataclasses.dataclass(frozen=True, eq=False)
class Tasks:
    """The tasks of a program.

    Attributes:
      shares: what each program computes.
      number: which program.
      span: what it has of the groups that are shared out.
      by_rows: whether lines are block rows, not block columns.
      across: of each entry of the lists of kept blocks, where in its line the block lies.
      columns: what db takes, or None.
    """

    shares: Shares
    number: Array
    span: Span
    by_rows: bool
    across: Table
    columns: Columns | None

    def n_tasks(self) -> Array:
        """How many there are."""
        return self.shares.n_parts(self.span)

    def task(self, turn: Array) -> Task:
        """A task by its number."""
        part, groups = self.shares.part(self.number, self.span, turn), self.shares.groups
        number = part.group - groups.n
        is_column = number >= 0
        group = groups.find(jnp.where(is_column, 0, part.group))
        if self.columns is None:
            return Task(part, group, is_column, jnp.int32(0))
        last = jnp.int32(self.columns.order.size - 1)
        column = self.columns.order.read(last - jnp.maximum(number, 0))
        line = group.line if self.by_rows else jnp.where(is_column, column, group.line)
        length = jnp.where(is_column, 0, group.length)
        return Task(part, Group(line, group.entry, length), is_column, column)

    def has_block(self, task: Task, index: int) -> Bool[Array, ""]:
        """Whether there is a block to load, of those that are computed together.

        They are of dy where lines are rows, and of a column without a kept block its dy is one.
        """
        is_kept = index < task.group.length
        return is_kept | task.is_column if self.by_rows and index == 0 else is_kept

    def has_shared(self, task: Task) -> Bool[Array, ""]:
        """Whether there is something to load that the blocks share: x or, by columns, dy."""
        return ~task.is_column | (not self.by_rows)

    def block(self, task: Task, index: Array | int) -> Array:
        """Where in its line one of the blocks that are computed together lies; or any place."""
        entry = jnp.minimum(task.group.entry + index, self.across.size - 1)
        block = self.across.read(entry)
        return jnp.where(task.is_column, task.column, block) if self.by_rows else block

    def column(self, task: Task, index: Array) -> Array:
        """The block column of one of the blocks that are computed together."""
        return self.block(task, index) if self.by_rows else task.group.line

    def adds_bias(self, task: Task, index: Array) -> Bool[Array, ""]:
        """Whether it is with this one of the blocks that db of its column is added up."""
        assert self.columns is not None
        if self.by_rows:
            first = self.columns.start.read(self.column(task, index))
            row = self.columns.across.read(jnp.minimum(first, self.across.size - 1))
            is_first = (index < task.group.length) & (row == task.group.line)
            return is_first | (task.is_column & (index == 0))
        is_first = task.group.entry == self.shares.groups.start.read(task.group.line)
        return (index == 0) & (is_first | task.is_column)


def group_of_column(
    turn: Array, shares: Shares, columns: Columns, before: Table, *, by_rows: bool
) -> tuple[Array, Counted]:
    """A block column, and the group that its db is added up with.

    Args:
      turn: which of the columns, in their order.
      shares: what each program computes.
      columns: the kept blocks by block columns.
      before: of each block, line by line, how many entries lie before it.
      by_rows: whether lines are block rows, not block columns.
    """
    column, last = columns.order.read(turn), jnp.int32(columns.order.size - 1)
    first, after = columns.start.read(column), columns.start.read(column + 1)
    groups, line, place = shares.groups, column, jnp.int32(0)
    if by_rows:
        line = columns.across.read(jnp.minimum(first, columns.across.size - 1))
        place = before.read(line * columns.order.size + column) - groups.start.read(line)
    of_block, _ = groups.of_block(line, place)
    both = zip(groups.of_column(last - turn), of_block, strict=True)
    return column, Counted(*(jnp.where(first == after, *own) for own in both))
