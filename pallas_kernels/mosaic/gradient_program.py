"""One program of `dW = (x^T dy) * M` on Hopper: what its warpgroups do.

A program owns one kept block, or a few of one line of blocks, and a share of the rows. One
warpgroup streams the operands through a ring of buffers, the others multiply, 64 rows of the result
each. Where a line has too few blocks left for a program, what is missing is not loaded, and the
sums in its place are of any numbers: nobody reads them.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.mosaic import warpgroup
from pallas_kernels.mosaic.gradient_tiles import ROWS


@dataclasses.dataclass(frozen=True)
class Cut:
    """How a product is cut into programs, and how its operands lie.

    Attributes:
      height: of a block as it is computed.
      width: of a block as it is computed.
      n_together: blocks of one line that a program computes.
      depth: rows of x and dy in one buffer.
      stages: buffers of the ring.
      n_steps: buffers that all rows fill.
      per_share: how many of these a program takes at most.
      left_along_rows: whether the left operand lies `[features, rows]`, else `[rows, features]`.
      right_along_rows: the same of the right one.
    """

    height: int
    width: int
    n_together: int
    depth: int
    stages: int
    n_steps: int
    per_share: int
    left_along_rows: bool
    right_along_rows: bool

    @property
    def tall(self) -> int:
        """Rows of the result of a program."""
        return self.height * self.n_together

    @property
    def n_compute(self) -> int:
        """Warpgroups that multiply."""
        return self.tall // ROWS


class Memory(NamedTuple):
    """What the warpgroups of a program share.

    Attributes:
      left: `[stages, ...]`, the ring of the left operand; what does not lie along the rows is
        `[stages, n_together, depth, height]`.
      right: `[stages, ...]`, that of the right one.
      staging: `[n_compute, 64, width]` of the result, on their way out.
      full: for each stage, the barrier that opens when both operands are there.
      free: that opens when no warpgroup reads them any more.
    """

    left: Any
    right: Any
    staging: Any
    full: Any
    free: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A program, which copies with one warpgroup and multiplies with the others.

    Attributes:
      cut: how the product is cut.
      memory: what its warpgroups share.
      left: the left operand, in global memory as all four; the blocks of a group lie across it.
      right: the right operand, of whose features a line of blocks has a part.
      across: of all groups, as `groups.Groups`.
      dw: the sums of all shares and groups, one below the other.
      line: its line of blocks.
      group: which group of blocks it computes.
      length: how many blocks the group has.
      first: its first step.
      last: the step behind its last one.
      first_row: its first row of `dw`.
    """

    cut: Cut
    memory: Memory
    left: Any
    right: Any
    across: warpgroup.Table
    dw: Any
    line: Array
    group: Array
    length: Array
    first: Array
    last: Array
    first_row: Array

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
            warpgroup.wait(self.memory.free.at[slot])

        return slot

    def _fetch_step(self, step: Array, _: None) -> None:
        """Starts the copies of a step, once its buffers are free."""
        cut, memory, slot = self.cut, self.memory, self._free_slot(step)
        full = memory.full.at[slot]
        for i in range(cut.n_together):
            fetch = functools.partial(self._fetch_left, step, i, self._left_part(slot, i), full)
            pl.when(i < self.length)(fetch)
            # The barrier counts every block, whether the group has it or not.
            pl.when(i >= self.length)(functools.partial(warpgroup.arrive, full))
        place = self._place(step, self.line * cut.width, cut.width, cut.right_along_rows)
        warpgroup.fetch(self.right.at[place], memory.right.at[slot], full)

    def _fetch_left(self, step: Array, index: int, destination: Any, full: Any) -> None:
        """Starts the copy of the features of one of the blocks that are computed together."""
        cut = self.cut
        block = self.across.read(self.group * cut.n_together + index)
        place = self._place(step, block * cut.height, cut.height, cut.left_along_rows)
        warpgroup.fetch(self.left.at[place], destination, full)

    def _left_part(self, slot: Array, index: int) -> Any:
        """Where the features of one of the blocks that are computed together go."""
        cut, left = self.cut, self.memory.left
        if not cut.left_along_rows:
            return left.at[slot, index]
        if cut.n_together == 1:
            return left.at[slot]
        return left.at[slot, pl.ds(index * cut.height, cut.height)]

    def multiply(self, thread: Array) -> None:
        """What a multiplying warpgroup does with its 64 rows of the result."""

        def sum_up(total: Any) -> None:
            jax.lax.fori_loop(
                self.first, self.last, lambda step, _: self._add_step(total, thread, step), None
            )
            # The sums are read: the last product has to be done.
            warpgroup.finish_products(0)
            rows = pl.ds(self.first_row + thread * ROWS, ROWS)
            warpgroup.write(total[...], self.memory.staging.at[thread], self.dw.at[rows])

        has_rows = thread * ROWS < self.length * self.cut.height

        @pl.when(has_rows)
        def _multiply() -> None:
            warpgroup.with_accumulators((ROWS, self.cut.width), 1, sum_up)

        @pl.when(~has_rows)
        def _pass_by() -> None:
            jax.lax.fori_loop(self.first, self.last, lambda step, _: self._pass_by(step), None)

        warpgroup.finish_writes()

    def _pass_by(self, step: Array) -> None:
        """Gives back the buffers of a step that has nothing for this warpgroup, but the last's."""
        slot = self._slot(step)
        # They are filled first, or the barrier would count this for the use before.
        warpgroup.wait(self.memory.full.at[slot])

        @pl.when(step + 1 < self.last)
        def _free() -> None:
            warpgroup.arrive(self.memory.free.at[slot])

    def _add_step(self, total: Any, thread: Array, step: Array) -> None:
        """Adds the product of a step, once its operands are there."""
        cut, memory, slot = self.cut, self.memory, self._slot(step)
        warpgroup.wait(memory.full.at[slot])
        first = thread * ROWS
        if cut.left_along_rows:
            left = memory.left.at[slot, pl.ds(first, ROWS)]
        else:
            # A block has one warpgroup's rows, or two's.
            block, inside = jax.lax.div(first, cut.height), jax.lax.rem(first, cut.height)
            left = warpgroup.turned(memory.left.at[slot, block, :, pl.ds(inside, ROWS)])
        right = memory.right.at[slot]
        right = warpgroup.turned(right) if cut.right_along_rows else right
        warpgroup.start_product(total, left, right)
        # Products end in their order, so all but this one have: the buffers of the one before are
        # read no more. This one's own are given back one step later, and the last one's never,
        # because nothing is fetched after it.
        warpgroup.finish_products(1)

        @pl.when(step > self.first)
        def _free() -> None:
            warpgroup.arrive(memory.free.at[self._slot(step - 1)])

    def _slot(self, step: Array) -> Array:
        """The buffers of a step."""
        return jax.lax.rem(step - self.first, jnp.int32(self.cut.stages))

    def _place(self, step: Array, feature: Array, n_features: int, along_rows: bool) -> Any:
        """Where in an operand the rows of a step and some features are."""
        rows, features = pl.ds(step * self.cut.depth, self.cut.depth), pl.ds(feature, n_features)
        return (features, rows) if along_rows else (rows, features)
