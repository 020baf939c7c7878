"""All work of a kernel's gradient, shared out evenly among programs that run side by side.

Groups of kept blocks (`balanced_groups.py`) have a step for every buffer that the rows fill. What
takes the time of a step are its loads, of as many buffers as the group has blocks and one more,
unless they are so few that it waits for the first of them: it may count some loads more. The loads
of all groups, one group after the other, are shared out: each program takes as many that follow
each other, to a whole step, and may begin and end in the middle of a group, whose sums are then
those of several programs (Osama et al. 2023, Stream-K, arXiv 2301.03598).

Where x and dy are too large for the second-level cache, programs go in rounds first, in each of
which every one takes a whole group: all begin with the same rows at the same time, which the cache
holds for them. What is left then is shared out by its steps.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.mosaic.balanced_groups import Counted, Groups
from pallas_kernels.mosaic.gradient_tiles import GradientTiles, n_steps, shape_of
from pallas_kernels.sparse_layer import SparseLayer

MOST_SHARES = 8
"""Programs that add to one group at most."""
CACHED_BYTES = 100_000_000
"""Of x and dy, up to which programs need not be at the same rows: twice the second-level cache of
an H200, where with 84 MB a load took as long in rounds as without."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is known of the shares without the mask.

    Attributes:
      n_steps: of a group.
      n_programs: how many programs there are.
      n_lines: lines of blocks.
      n_together: how many blocks of one a group has at most.
      in_rounds: whether programs take whole groups first, and share out the rest by its steps; else
        all is shared out by its loads.
      beside: as of `GradientTiles`.
    """

    n_steps: int
    n_programs: int
    n_lines: int
    n_together: int
    in_rounds: bool
    beside: int = 1

    @property
    def most(self) -> int:
        """What a step of a group counts at most."""
        return 1 if self.in_rounds else self.n_together + self.beside

    @property
    def fewest(self) -> int:
        """What a program has to do at least, or a group would be shared by too many."""
        return max(self.most, pl.cdiv(self.most * (self.n_steps - 1), MOST_SHARES - 1))

    @property
    def fewest_left(self) -> int:
        """Groups that are left after the rounds at least, or some programs had none of them."""
        return pl.cdiv(self.fewest * self.n_programs, self.n_steps)

    def n_shares(self, layer: SparseLayer) -> int:
        """By how many programs a group is shared at most, whatever the mask."""
        fewest_groups = max(1, pl.cdiv(layer.n_kept, self.n_together))
        # Of each line and, for db, of each column one group may be all but empty.
        n_columns = layer.kernel_shape[1] // layer.block[0]
        most_groups = fewest_groups + self.n_lines + n_columns
        each = self.fewest
        if not self.in_rounds:
            loads = (layer.n_kept + fewest_groups * self.beside) * self.n_steps
            each = max(each, pl.cdiv(loads, self.n_programs))
        elif most_groups < self.n_programs:
            # No round: all groups are shared out.
            each = max(each, pl.cdiv(fewest_groups * self.n_steps, self.n_programs))
        return pl.cdiv(self.most * (self.n_steps - 1), each) + 1

    def n_places(self, n_kept: int) -> int:
        """Blocks of sums in memory: of each kept block one share, and of each program a group.

        A program begins in the middle of one group at most.
        """
        return n_kept + self.n_programs * self.n_together


def plan_of(layer: SparseLayer, n_rows: int, tiles: GradientTiles) -> Plan:
    """How the work of a layer's gradient is shared out, as far as the mask has no say in it."""
    n_lines = shape_of(layer, by_rows=tiles.by_rows).n_lines
    operands = n_rows * sum(layer.kernel_shape) * jnp.dtype(layer.dtype).itemsize
    steps = n_steps(n_rows, layer.dtype)
    in_rounds = operands > CACHED_BYTES
    return Plan(steps, tiles.programs, n_lines, tiles.n_together, in_rounds, tiles.beside)


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


class Span(NamedTuple):
    """What a program has of all that is shared out: groups that follow each other.

    It lies in registers beside the sums, so it says nothing twice.

    Attributes:
      n: how many groups.
      first: the number of the first one.
      begin: its first step.
      share: which of those who compute the first one this is.
      end: the step behind the last one, of the last group.
    """

    n: Array
    first: Array
    begin: Array
    share: Array
    end: Array


class Shares(NamedTuple):
    """The shares of all programs for one mask.

    Attributes:
      plan: what does not depend on it.
      groups: of the kept blocks.
      rounds: how many whole groups a program has.
      n_left: how much there is of the groups that are left: of loads, or of steps after rounds.
      each: how much of it a program has.
    """

    plan: Plan
    groups: Groups
    rounds: Array
    n_left: Array
    each: Array

    def span(self, program: Array) -> Span:
        """What a program has of what is shared out."""
        n_steps, most = jnp.int32(self.plan.n_steps), jnp.maximum(self.n_left - 1, 0)
        begin, end = program * self.each, (program + 1) * self.each
        first, step = self._step_at(jnp.minimum(begin, most))
        behind, n_done = self._step_at(jnp.minimum(end, most))
        # It ends with a step of the group that follows, or with all steps of the one before that.
        n_done = jnp.where(end < self.n_left, n_done, n_steps)
        last = jnp.where(n_done > 0, behind.group, behind.group - 1)
        n = jnp.where(begin < self.n_left, last - first.group + 1, 0)
        share = program - self.first_program(first)
        return Span(n, first.group, step, share, jnp.where(n_done > 0, n_done, n_steps))

    def n_parts(self, span: Span) -> Array:
        """Of how many groups a program computes a part, or all."""
        return self.rounds + span.n

    def part(self, program: Array, span: Span, turn: Array) -> Part:
        """A part of a program by its number.

        Args:
          program: the program.
          span: of this program.
          turn: less than `n_parts`.
        """
        is_first, is_last = turn == self.rounds, turn == self.rounds + span.n - 1
        group = span.first + turn - self.rounds
        if self.plan.in_rounds:
            is_whole = turn < self.rounds
            group = jnp.where(is_whole, turn * self.plan.n_programs + program, group)
            # Without a group beyond the rounds the last of these is no last one of what is shared.
            is_last &= ~is_whole
        return Part(
            group=group,
            first=jnp.where(is_first, span.begin, 0),
            last=jnp.where(is_last, span.end, jnp.int32(self.plan.n_steps)),
            share=jnp.where(is_first, span.share, 0),
        )

    def n_shares(self, counted: Counted) -> Array:
        """How many programs compute a part of a group."""
        before, each = self._measure(counted)
        n = self._program_of((before + each) * self.plan.n_steps - 1)
        n = n - self.first_program(counted) + 1
        return jnp.where(counted.group < self._n_whole, 1, n)

    def first_program(self, counted: Counted) -> Array:
        """Who computes the first part of a group that fills no round: at least a step of it."""
        before, each = self._measure(counted)
        return self._program_of(before * self.plan.n_steps + each - 1)

    @property
    def _n_whole(self) -> Array:
        """Groups before those that are shared out."""
        return self.rounds * self.plan.n_programs

    def _measure(self, counted: Counted) -> tuple[Array, Array]:
        """What a step counts, of each group before this one in all, and of its own."""
        if self.plan.in_rounds:
            return counted.group - self._n_whole, jnp.int32(1)
        return counted.before, counted.each

    def _step_at(self, n_done: Array) -> tuple[Counted, Array]:
        """The group, and the step of it, that is reached when so much is done."""
        reached = jax.lax.div(n_done, jnp.int32(self.plan.n_steps))
        if self.plan.in_rounds:
            nothing = jnp.int32(0)
            counted = Counted(self._n_whole + reached, nothing, nothing)
        else:
            counted = self.groups.at(reached)
        before, each = self._measure(counted)
        return counted, jax.lax.div(n_done - before * self.plan.n_steps, each)

    def _program_of(self, n_done: Array) -> Array:
        return jax.lax.div(n_done, self.each)


def shares_of(plan: Plan, groups: Groups) -> Shares:
    """The shares of all programs.

    Args:
      plan: what does not depend on the mask.
      groups: of the kept blocks, of one kernel.
    """
    n_programs, rounds = jnp.int32(plan.n_programs), jnp.int32(0)
    if plan.in_rounds:
        rounds = jax.lax.div(jnp.maximum(groups.n_all - plan.fewest_left, 0), n_programs)
        n_left = (groups.n_all - rounds * n_programs) * plan.n_steps
    else:
        n_left = groups.n_loads * plan.n_steps
    each = jax.lax.div(n_left + (n_programs - 1), n_programs)
    return Shares(plan, groups, rounds, n_left, jnp.maximum(each, plan.fewest))
