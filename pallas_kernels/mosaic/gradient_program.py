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

from pallas_kernels.mosaic import warpgroup
from pallas_kernels.mosaic.gradient_tiles import MOST_STAGED, ROWS, Shape


@dataclasses.dataclass(frozen=True)
class Cut:
    """How a product is cut into programs, and how its operands lie.

    Attributes:
      shape: which operand is the left one, and how a block is computed.
      n_together: blocks of one line that a program computes.
      depth: rows of x and dy in one buffer.
      stages: buffers of the ring.
      n_steps: buffers that all rows fill.
      per_share: how many of these a program takes at most.
    """

    shape: Shape
    n_together: int
    depth: int
    stages: int
    n_steps: int
    per_share: int

    @property
    def tall(self) -> int:
        """Rows of the result of a program."""
        return self.shape.height * self.n_together

    @property
    def n_compute(self) -> int:
        """Warpgroups that multiply."""
        return self.tall // ROWS

    @property
    def n_staged(self) -> int:
        """How many of them write their results at the same time."""
        return min(self.n_compute, MOST_STAGED)


class Memory(NamedTuple):
    """What the warpgroups of a program share.

    Attributes:
      own: `[stages, ...]`, the ring of the operand of which each block has a part of its own; what
        does not lie along the rows is `[stages, n_together, depth, features]`.
      shared: `[stages, ...]`, that of the other one.
      staging: `[n_staged, 64, width]` of the result, on their way out.
      left: for each of these, the barrier that opens when who took it first has written.
      full: for each stage, the barrier that opens when both operands are there.
      free: that opens when no warpgroup reads them any more.
    """

    own: Any
    shared: Any
    staging: Any
    left: Any
    full: Any
    free: Any


class Group(NamedTuple):
    """Kept blocks of one line that are computed together.

    Attributes:
      line: which line.
      entry: its first entry in the lists of kept blocks.
      length: how many they are; 0 if there is no such group.
    """

    line: Array
    entry: Array
    length: Array


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
      memory: what its warpgroups share.
      own: the operand of which each block has a part of its own, in global memory as all three.
      shared: the other operand, of whose features a line of blocks has a part.
      across: of each entry of the lists of kept blocks, where in its line the block lies.
      dw: the sums of all shares, entry by entry, one below the other.
      group: what it computes.
      first: its first step.
      last: the step behind its last one.
      first_block: the place in `dw` of its first block.
    """

    cut: Cut
    memory: Memory
    own: Any
    shared: Any
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
            warpgroup.wait(self.memory.free.at[slot])

        return slot

    def _fetch_step(self, step: Array, _: None) -> None:
        """Starts the copies of a step, once its buffers are free."""
        cut, memory, slot = self.cut, self.memory, self._free_slot(step)
        full = memory.full.at[slot]
        for i in range(cut.n_together):
            fetch = functools.partial(self._fetch_own, step, i, self._own_part(slot, i), full)
            pl.when(i < self.group.length)(fetch)
            # The barrier counts every block, whether the group has it or not.
            pl.when(i >= self.group.length)(functools.partial(warpgroup.arrive, full))
        n_features = cut.shape.shared
        along_rows = cut.shape.shared_along_rows
        place = self._place(step, self.group.line * n_features, n_features, along_rows)
        warpgroup.fetch(self.shared.at[place], memory.shared.at[slot], full)

    def _fetch_own(self, step: Array, index: int, destination: Any, full: Any) -> None:
        """Starts the copy of the features of one of the blocks that are computed together."""
        block, n_features = self.across.read(self.group.entry + index), self.cut.shape.own
        along_rows = self.cut.shape.own_along_rows
        place = self._place(step, block * n_features, n_features, along_rows)
        warpgroup.fetch(self.own.at[place], destination, full)

    def _own_part(self, slot: Array, index: int) -> Any:
        """Where the features of one of the blocks that are computed together go."""
        cut, own = self.cut, self.memory.own
        if not cut.shape.own_along_rows:
            return own.at[slot, index]
        if cut.n_together == 1:
            return own.at[slot]
        return own.at[slot, pl.ds(index * cut.shape.own, cut.shape.own)]

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
            warpgroup.arrive(self.memory.left.at[thread])

    def _after_the_first(self, thread: Array) -> None:
        """Waits until whoever takes the same staging memory first has written, if another does."""
        n_staged = self.cut.n_staged

        @pl.when(thread >= n_staged)
        def _wait() -> None:
            warpgroup.wait(self.memory.left.at[thread - n_staged])

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
        memory, slot = self.memory, self._slot(step)
        warpgroup.wait(memory.full.at[slot])
        left, right = self._operands(thread, slot)
        warpgroup.start_product(total, left, right)
        # Products end in their order, so all but this one have: the buffers of the one before are
        # read no more. This one's own are given back one step later, and the last one's never,
        # because nothing is fetched after it.
        warpgroup.finish_products(1)

        @pl.when(step > self.first)
        def _free() -> None:
            warpgroup.arrive(memory.free.at[self._slot(step - 1)])

    def _operands(self, thread: Array, slot: Array) -> tuple[Any, Any]:
        """The 64 rows of a warpgroup in the left operand, and the right one, of a step."""
        shape, own, shared = self.cut.shape, self.memory.own, self.memory.shared
        first = thread * ROWS
        # A block has one warpgroup's rows, or two's.
        block, inside = (f(first, jnp.int32(shape.height)) for f in (jax.lax.div, jax.lax.rem))
        if shape.is_shared_left:
            return (
                warpgroup.turned(shared.at[slot, :, pl.ds(inside, ROWS)]),
                own.at[slot, block],
            )
        right = shared.at[slot]
        right = warpgroup.turned(right) if shape.shared_along_rows else right
        if shape.own_along_rows:
            return own.at[slot, pl.ds(first, ROWS)], right
        return warpgroup.turned(own.at[slot, block, :, pl.ds(inside, ROWS)]), right

    def _write(self, total: Any, thread: Array) -> None:
        """Writes the sums of a warpgroup: a part of a block, or those blocks that there are."""
        height = self.cut.shape.height
        first = thread * ROWS
        warpgroup.write_blocks(
            total[...],
            self.memory.staging.at[jax.lax.rem(thread, jnp.int32(self.cut.n_staged))],
            self.dw,
            self.first_block * height + first,
            height,
            self.group.length - jax.lax.div(first, jnp.int32(height)),
        )

    def _slot(self, step: Array) -> Array:
        """The buffers of a step."""
        return jax.lax.rem(step - self.first, jnp.int32(self.cut.stages))

    def _place(self, step: Array, feature: Array, n_features: int, along_rows: bool) -> Any:
        """Where in an operand the rows of a step and some features are."""
        rows, features = pl.ds(step * self.cut.depth, self.cut.depth), pl.ds(feature, n_features)
        return (features, rows) if along_rows else (rows, features)
