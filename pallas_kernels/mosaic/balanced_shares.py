"""All steps of a kernel's gradient, shared out evenly among programs that run side by side.

The groups of kept blocks that are computed together have a step for every buffer that the rows
fill. In rounds each program takes a whole group: all are at the same rows at the same time, which
the cache holds for them. The groups that are left fill no round. All their steps, one group after
the other, are shared out: each program takes as many that follow each other, and may begin and end
in the middle of a group, whose sums are then those of several programs (Osama et al. 2023,
Stream-K, arXiv 2301.03598). Where db is computed as well, block columns without a kept block follow
the groups, each a group of its own.

What depends on the mask is found in a table that XLA makes in one kernel, `table_of`.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Int

from pallas_kernels.lists import BlockLists, ListedBlocks
from pallas_kernels.mosaic.gradient_operands import Group
from pallas_kernels.mosaic.gradient_tiles import GradientTiles, n_steps, shape_of
from pallas_kernels.mosaic.warpgroup import Table
from pallas_kernels.sparse_layer import SparseLayer

MOST_SHARES = 8
"""Programs that add to one group at most."""


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


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is known of the shares without the mask.

    Attributes:
      n_steps: of a group.
      n_programs: how many programs there are.
      n_lines: lines of blocks.
      n_together: how many blocks of one a group has at most.
    """

    n_steps: int
    n_programs: int
    n_lines: int
    n_together: int

    @property
    def fewest(self) -> int:
        """Steps of a program at least, or a group would be shared by too many."""
        return max(1, pl.cdiv(self.n_steps - 1, MOST_SHARES - 1))

    def n_shares(self, layer: SparseLayer) -> int:
        """By how many programs a group is shared at most, whatever the mask."""
        fewest_groups = max(1, pl.cdiv(layer.n_kept, self.n_together))
        # Of each line and, for db, of each column one group may be all but empty.
        n_columns = layer.kernel_shape[1] // layer.block[0]
        most_groups = fewest_groups + self.n_lines + n_columns
        steps = self.fewest
        if most_groups < self.n_programs:
            # No round: all groups are shared out.
            steps = max(steps, pl.cdiv(fewest_groups * self.n_steps, self.n_programs))
        return pl.cdiv(self.n_steps - 1, steps) + 1

    def n_places(self, n_kept: int) -> int:
        """Blocks of sums in memory: of each kept block one share, and of each program a group.

        A program begins in the middle of one group at most.
        """
        return n_kept + self.n_programs * self.n_together


def plan_of(layer: SparseLayer, n_rows: int, tiles: GradientTiles) -> Plan:
    """How the steps of a layer's gradient are shared out, as far as the mask has no say in it."""
    n_lines = shape_of(layer, by_rows=tiles.by_rows).n_lines
    return Plan(n_steps(n_rows, layer.dtype), tiles.programs, n_lines, tiles.n_together)


class Part(NamedTuple):
    """What a program computes of one group.

    Attributes:
      group: the number of the group.
      first: its first step.
      last: the step behind its last one.
      share: which of those who compute the group this is, in the order of their steps.
    """

    group: Array
    first: Array
    last: Array
    share: Array


class Shares(NamedTuple):
    """The shares of all programs for one mask.

    Attributes:
      plan: what does not depend on it.
      before: `table_of` the kept blocks, of one kernel.
      rounds: how many whole groups a program has.
      n_left: how many steps there are of the groups that are left.
      each: how many of these a program has.
    """

    plan: Plan
    before: Table
    rounds: Array
    n_left: Array
    each: Array

    def n_parts(self, program: Array) -> Array:
        """Of how many groups a program computes a part, or all."""
        begin, end = self._steps_of(program)
        parts = self._group_of(end - 1) - self._group_of(begin) + 1
        return self.rounds + jnp.where(begin < end, parts, 0)

    def part(self, program: Array, turn: Array) -> Part:
        """A part of a program by its number."""
        begin, end = self._steps_of(program)
        n_steps, is_whole = jnp.int32(self.plan.n_steps), turn < self.rounds
        left = self._group_of(begin) + turn - self.rounds
        before = left * n_steps
        first = jnp.where(is_whole, 0, jnp.maximum(begin - before, 0))
        last = jnp.where(is_whole, n_steps, jnp.minimum(end - before, n_steps))
        group = jnp.where(is_whole, turn * self.plan.n_programs + program, self._n_whole + left)
        share = jnp.where(is_whole, 0, program - self._program_of(before))
        return Part(group, first, last, share)

    def n_shares(self, group: Array) -> Array:
        """How many programs compute a part of a group."""
        last = (group - self._n_whole + 1) * jnp.int32(self.plan.n_steps) - 1
        n = self._program_of(last) - self.first_program(group) + 1
        return jnp.where(group < self._n_whole, 1, n)

    def first_program(self, group: Array) -> Array:
        """Who computes the first part of a group that fills no round."""
        return self._program_of((group - self._n_whole) * jnp.int32(self.plan.n_steps))

    @property
    def n_groups(self) -> Array:
        """How many groups have kept blocks; behind these are columns without any."""
        return self.before.read(jnp.int32(self.plan.n_lines))

    def find(self, number: Array, start: Table) -> Group:
        """A group of kept blocks by its number: those of a line are of like lengths.

        Args:
          number: less than `n_groups`.
          start: of each line, its first entry in the lists of kept blocks.
        """
        low, high = jnp.int32(0), jnp.int32(self.plan.n_lines)
        for _ in range((self.plan.n_lines - 1).bit_length()):
            middle = jax.lax.div(low + high, jnp.int32(2))
            is_low = self.before.read(middle) <= number
            low, high = jnp.where(is_low, middle, low), jnp.where(is_low, high, middle)
        first, length = start.read(low), start.read(low + 1) - start.read(low)
        before = self.before.read(low)
        index, n = number - before, self.before.read(low + 1) - before
        begin = jax.lax.div(index * length, n)
        return Group(low, first + begin, jax.lax.div((index + 1) * length, n) - begin)

    def group_of(self, line: Array, place: Array, length: Array) -> tuple[Array, Array]:
        """Which group a kept block is in, and which block of it this is.

        Args:
          line: its line.
          place: how many kept blocks of this line lie before it.
          length: how many the line has, at least 1.
        """
        before = self.before.read(line)
        # A line without any has no group; what is found of it then is not used.
        n = jnp.maximum(self.before.read(line + 1) - before, 1)
        index = jax.lax.div((place + 1) * n - 1, length)
        return before + index, place - jax.lax.div(index * length, n)

    @property
    def _n_whole(self) -> Array:
        """Groups before those that are shared out."""
        return self.rounds * jnp.int32(self.plan.n_programs)

    def _steps_of(self, program: Array) -> tuple[Array, Array]:
        """Of the steps of the groups that are left."""
        begin = program * self.each
        return begin, jnp.minimum(begin + self.each, self.n_left)

    def _group_of(self, step: Array) -> Array:
        return jax.lax.div(step, jnp.int32(self.plan.n_steps))

    def _program_of(self, step: Array) -> Array:
        return jax.lax.div(step, self.each)


def shares_of(plan: Plan, before: Table) -> Shares:
    """The shares of all programs.

    Args:
      plan: what does not depend on the mask.
      before: `table_of` the kept blocks, of one kernel.
    """
    n_programs = jnp.int32(plan.n_programs)
    n_groups = before.read(jnp.int32(plan.n_lines + 1))
    rounds = jax.lax.div(n_groups, n_programs)
    n_left = (n_groups - rounds * n_programs) * jnp.int32(plan.n_steps)
    each = jax.lax.div(n_left + (n_programs - 1), n_programs)
    return Shares(plan, before, rounds, n_left, jnp.maximum(each, plan.fewest))
