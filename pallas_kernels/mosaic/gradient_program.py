"""One program of `dW = (x^T dy) * M` on Hopper: what its warpgroups do.

A program owns a group of kept blocks, of one line of blocks, and a share of the rows. One
warpgroup streams the operands through a ring of buffers, the others multiply, 64 rows of the result
each. Where a line has too few blocks left for a group, what is missing is neither loaded nor
written.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.mosaic import gradient_operands, warpgroup
from pallas_kernels.mosaic.gradient_operands import Group, Operands
from pallas_kernels.mosaic.gradient_tiles import MOST_STAGED, ROWS


@dataclasses.dataclass(frozen=True)
class Cut(gradient_operands.Cut):
    """How a product is cut into programs.

    Attributes:
      n_steps: buffers that all rows fill.
      per_share: how many of these a program takes at most.
    """

    n_steps: int
    per_share: int

    @property
    def n_staged(self) -> int:
        """How many warpgroups write their results at the same time."""
        return min(self.n_compute, MOST_STAGED)


class Staging(NamedTuple):
    """What the warpgroups of a program share of the result.

    Attributes:
      sums: `[n_staged, 64, width]` of the result, on their way out.
      left: for each of these, the barrier that opens when who took it first has written.
    """

    sums: Any
    left: Any


def find_group(start: warpgroup.Table, index: Array, cut: Cut) -> Group:
    """A group by its number, line by line.

    Args:
      start: of each line, its first entry in the lists of kept blocks.
      index: the number.
      cut: how many blocks a group has at most.
    """
    n_together = jnp.int32(cut.n_together)

    def of_line(line: Array, state: tuple[Array, Array, Array, Group]) -> Any:
        before, first, following, found = state
        # Read a line ahead: its way to memory overlaps with the search.
        ahead = start.read(jnp.minimum(line + 2, cut.shape.n_lines))
        after = before + jax.lax.div(following - first + n_together - 1, n_together)
        entry = first + (index - before) * n_together
        here = Group(line, entry, jnp.minimum(following - entry, n_together))
        is_here = (before <= index) & (index < after)
        found = Group(*(jnp.where(is_here, a, b) for a, b in zip(here, found, strict=True)))
        return after, following, ahead, found

    none = jnp.int32(0)
    state = none, start.read(none), start.read(none + 1), Group(none, none, none)
    *_, found = jax.lax.fori_loop(none, jnp.int32(cut.shape.n_lines), of_line, state)
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A program, which copies with one warpgroup and multiplies with the others.

    Attributes:
      cut: how the product is cut.
      operands: what is multiplied.
      staging: what its warpgroups share of the result.
      across: of each entry of the lists of kept blocks, where in its line the block lies.
      dw: the sums of all shares, entry by entry, one below the other.
      group: what it computes.
      first: its first step.
      last: the step behind its last one.
      first_block: the place in `dw` of its first block.
    """

    cut: Cut
    operands: Operands
    staging: Staging
    across: warpgroup.Table
    dw: Any
    group: Group
    first: Array
    last: Array
    first_block: Array

    def copy(self) -> None:
        """What the copying warpgroup does."""
        jax.lax.fori_loop(self.first, self.last, self._fetch_step, None)
        # A barrier ends in a phase that whoever waits for it has seen; the last step frees nothing.
        for more in range(self.cut.stages - 1):
            self._free_slot(self.last + more)

    def _free_slot(self, step: Array) -> Array:
        """Waits until the buffers of a step are free.

        Returns:
          Which ones they are.
        """
        slot = self._slot(step)

        @pl.when(step >= self.first + self.cut.stages)
        def _free() -> None:
            warpgroup.wait(self.operands.ring.free.at[slot])

        return slot

    def _fetch_step(self, step: Array, _: None) -> None:
        """Starts the copies of a step, once its buffers are free."""
        slot, group = self._free_slot(step), self.group
        full = self.operands.ring.full.at[slot]
        for i in range(self.cut.n_together):

            @pl.when(i < group.length)
            def _fetch(i: int = i) -> None:
                block = self.across.read(group.entry + i)
                self.operands.fetch_own(step, slot, i, block)

            # The barrier counts every block, whether the group has it or not.
            pl.when(i >= group.length)(functools.partial(warpgroup.arrive, full))
        self.operands.fetch_shared(step, slot, group.line)

    def multiply(self, thread: Array) -> None:
        """What a multiplying warpgroup does with its 64 rows of the result."""

        def sum_up(total: Any) -> None:
            jax.lax.fori_loop(
                self.first, self.last, lambda step, _: self._add_step(total, thread, step), None
            )
            # The sums are read: the last product has to be done.
            warpgroup.finish_products(0)
            self._after_the_first(thread)
            self._write(total, thread)

        height = self.cut.shape.height
        has_rows = thread * ROWS < self.group.length * height

        @pl.when(has_rows)
        def _multiply() -> None:
            warpgroup.with_accumulators((ROWS, self.cut.shape.width), 1, sum_up)

        @pl.when(~has_rows)
        def _pass_by() -> None:
            jax.lax.fori_loop(self.first, self.last, lambda step, _: self._pass_by(step), None)
            self._after_the_first(thread)

        warpgroup.finish_writes()
        n_staged = self.cut.n_staged

        @pl.when(thread + n_staged < self.cut.n_compute)
        def _leave() -> None:
            warpgroup.arrive(self.staging.left.at[thread])

    def _after_the_first(self, thread: Array) -> None:
        """Waits until whoever takes the same staging memory first has written, if another does."""
        n_staged = self.cut.n_staged

        @pl.when(thread >= n_staged)
        def _wait() -> None:
            warpgroup.wait(self.staging.left.at[thread - n_staged])

    def _pass_by(self, step: Array) -> None:
        """Gives back the buffers of a step that has nothing for this warpgroup, but the last's."""
        slot = self._slot(step)
        # They are filled first, or the barrier would count this for the use before.
        warpgroup.wait(self.operands.ring.full.at[slot])

        @pl.when(step + 1 < self.last)
        def _free() -> None:
            warpgroup.arrive(self.operands.ring.free.at[slot])

    def _add_step(self, total: Any, thread: Array, step: Array) -> None:
        """Adds the product of a step, once its operands are there."""
        ring, slot = self.operands.ring, self._slot(step)
        warpgroup.wait(ring.full.at[slot])
        left, right = self.operands.of_warpgroup(thread, slot)
        warpgroup.start_product(total, left, right)
        # Products end in their order, so all but this one have: the buffers of the one before are
        # read no more. This one's own are given back one step later, and the last one's never,
        # because nothing is fetched after it.
        warpgroup.finish_products(1)

        @pl.when(step > self.first)
        def _free() -> None:
            warpgroup.arrive(ring.free.at[self._slot(step - 1)])

    def _write(self, total: Any, thread: Array) -> None:
        """Writes the sums of a warpgroup: a part of a block, or those blocks that there are."""
        height = self.cut.shape.height
        first = thread * ROWS
        warpgroup.write_blocks(
            total[...],
            self.staging.sums.at[jax.lax.rem(thread, jnp.int32(self.cut.n_staged))],
            self.dw,
            self.first_block * height + first,
            height,
            self.group.length - jax.lax.div(first, jnp.int32(height)),
        )

    def _slot(self, step: Array) -> Array:
        """The buffers of a step."""
        return jax.lax.rem(step - self.first, jnp.int32(self.cut.stages))
