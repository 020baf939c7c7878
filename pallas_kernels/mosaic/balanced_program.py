"""One program of `dW = (x^T dy) * M`, and of db, on Hopper, where all have as much to do.

A program computes groups of kept blocks, and parts of others, one after the other
(`balanced_tasks.py`). One warpgroup starts the copies of both operands into a ring of buffers, and
runs ahead into the next group while the others, 64 rows of the result each, write the sums of
theirs.

Tensor cores add up db: dy is the right operand of every product, and where db of a column belongs
to a block a second product multiplies it with ones. That of a column without a kept block is also
multiplied with whatever lies in the place of x, and nobody reads the result: such columns are few.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.mosaic import warpgroup
from pallas_kernels.mosaic.balanced_tasks import Task, Tasks
from pallas_kernels.mosaic.gradient_operands import Operands
from pallas_kernels.mosaic.gradient_tiles import ROWS


class Bias(NamedTuple):
    """What db takes.

    Attributes:
      ones: `[64, depth]`, in global memory: a row of ones above zeros.
      left: that in shared memory.
      ready: the barrier that opens when it is there.
      db: the sums of all shares, `[n_shares * n_columns * 64, features]`: of 64 rows the first. It
        is anything where a column has not so many.
      n_columns: block columns.
    """

    ones: Any
    left: Any
    ready: Any
    db: Any
    n_columns: int


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A program, which copies with one warpgroup and multiplies with the others.

    Attributes:
      operands: what is multiplied.
      tasks: what is computed.
      dw: the sums, one block below the other: the first share of every entry, then of every program
        what it adds to a group that it begins in the middle of.
      n_kept: how many entries there are.
      staging: of every warpgroup its rows `[n_compute, 64, features]`, on their way out; None where
        they are of one block, and are there if that is.
      bias: what db takes, or None.
    """

    operands: Operands
    tasks: Tasks
    dw: Any
    n_kept: int
    staging: Any
    bias: Bias | None

    def copy(self) -> None:
        """What the copying warpgroup does."""
        if self.bias is not None:
            warpgroup.fetch(self.bias.ones, self.bias.left, self.bias.ready.at[0])

        def of_task(turn: Array, use: Array) -> Array:
            task = self.tasks.task(turn)
            first, last = task.part.first, task.part.last
            # Read before the loop, not in each of its steps.
            n_together = self.operands.cut.n_together
            blocks = [self.tasks.block(task, index) for index in range(n_together)]

            def of_step(step: Array, _: None) -> None:
                self._fetch(task, blocks, step, use + step - first)

            jax.lax.fori_loop(first, last, of_step, None)
            return use + last - first

        n_uses = jax.lax.fori_loop(0, self.tasks.n_tasks(), of_task, jnp.int32(0))
        # A barrier ends in a phase that whoever waits for it has seen.
        for more in range(self.operands.cut.stages):
            self._free_slot(n_uses + more)

    def _free_slot(self, use: Array) -> Array:
        """Waits until the buffers of a use of the ring are free.

        Returns:
          Which ones they are.
        """
        slot = self._slot(use)

        @pl.when(use >= self.operands.cut.stages)
        def _free() -> None:
            warpgroup.wait(self.operands.ring.free.at[slot])

        return slot

    def _fetch(self, task: Task, blocks: list[Array], step: Array, use: Array) -> None:
        """Starts the copies of a step, once its buffers are free."""
        slot = self._free_slot(use)
        arrive = functools.partial(warpgroup.arrive, self.operands.ring.full.at[slot])
        copies = [
            (
                self.tasks.has_block(task, index),
                functools.partial(self.operands.fetch_own, step, slot, index, block),
            )
            for index, block in enumerate(blocks)
        ]
        shared = functools.partial(self.operands.fetch_shared, step, slot, task.group.line)
        for is_there, fetch in (*copies, (self.tasks.has_shared(task), shared)):
            pl.when(is_there)(fetch)
            # The barrier counts every copy, whether there is anything to copy or not.
            pl.when(jnp.logical_not(is_there))(arrive)

    def multiply(self, thread: Array) -> None:
        """What a multiplying warpgroup does with its 64 rows of each group."""
        if self.bias is not None:
            warpgroup.wait(self.bias.ready.at[0])

        def of_task(turn: Array, use: Array) -> Array:
            task = self.tasks.task(turn)
            self._compute(task, thread, use)
            return use + task.part.last - task.part.first

        jax.lax.fori_loop(0, self.tasks.n_tasks(), of_task, jnp.int32(0))
        if self.staging is not None:
            warpgroup.finish_writes()

    def _compute(self, task: Task, thread: Array, use: Array) -> None:
        """Computes a warpgroup's rows of a part of a group, from the ring's `use`th use on."""
        shape = ROWS, self.operands.cut.shape.width
        block, inside = self._place_of(thread)
        has_rows = block < task.group.length

        def compute(*totals: Any) -> None:
            self._add(task, thread, use, totals)
            pl.when(has_rows)(functools.partial(self._write, totals[0], task, thread))
            for beside in totals[1:]:
                self._write_bias(beside[...], task, thread)

        with_bias = False
        if self.bias is not None:
            with_bias = self.tasks.adds_bias(task, block) & (inside == 0)

            @pl.when(with_bias)
            def _both() -> None:
                warpgroup.with_accumulators(shape, 2, compute)

        @pl.when(has_rows & jnp.logical_not(with_bias))
        def _rows() -> None:
            warpgroup.with_accumulators(shape, 1, compute)

        @pl.when(jnp.logical_not(has_rows | with_bias))
        def _pass_by() -> None:
            after = use + task.part.last - task.part.first

            def of_use(own: Array, _: None) -> None:
                slot = self._slot(own)
                # They are filled first, or the barrier would count this for the use before.
                warpgroup.wait(self.operands.ring.full.at[slot])
                warpgroup.arrive(self.operands.ring.free.at[slot])

            jax.lax.fori_loop(use, after, of_use, None)

    def _place_of(self, thread: Array) -> tuple[Array, Array]:
        """The first block of a group that a warpgroup has rows of, and the first of these."""
        height = jnp.int32(self.operands.cut.shape.height)
        return jax.lax.div(thread * ROWS, height), jax.lax.rem(thread * ROWS, height)

    def _add(self, task: Task, thread: Array, use: Array, totals: tuple[Any, ...]) -> None:
        """Adds the products of a part, the second one with ones."""
        ring, first, after = self.operands.ring, use, use + task.part.last - task.part.first

        def free_before(own: Array) -> None:
            warpgroup.arrive(ring.free.at[self._slot(own - 1)])

        def add(own: Array, _: None) -> None:
            slot = self._slot(own)
            warpgroup.wait(ring.full.at[slot])
            left, right = self.operands.of_warpgroup(thread, slot)
            warpgroup.start_product(totals[0], left, right)
            if len(totals) == 2:
                assert self.bias is not None
                warpgroup.start_product(totals[1], self.bias.left, right)
            # Products end in their order, so all but those of this step have: the buffers of the
            # one before are read no more. This step's own are given back one step later.
            warpgroup.finish_products(len(totals))
            pl.when(own > first)(functools.partial(free_before, own))

        jax.lax.fori_loop(first, after, add, None)
        # The sums are read: the last products have to be done, which read the last buffers. No part
        # is without a step.
        warpgroup.finish_products(0)
        free_before(after)

    def _write(self, total: Any, task: Task, thread: Array) -> None:
        """Writes the sums of a warpgroup's rows: of a block, or of those blocks that there are."""
        block, inside = self._place_of(thread)
        shape, n_together = self.operands.cut.shape, self.operands.cut.n_together
        own = self.n_kept + self.tasks.number * n_together
        place = jnp.where(task.part.share == 0, task.group.entry, own) + block
        row = place * shape.height + inside
        if self.staging is None:
            warpgroup.put(total[...], self.dw.at[pl.ds(row, ROWS)])
            return
        # Those of the part before may still be on their way out.
        warpgroup.finish_writes()
        n_blocks = task.group.length - block
        staging = self.staging.at[thread]
        warpgroup.write_blocks(total[...], staging, self.dw, row, shape.height, n_blocks)

    def _write_bias(self, value: Array, task: Task, thread: Array) -> None:
        """Writes a share of db of a column."""
        assert self.bias is not None
        column = self.tasks.column(task, self._place_of(thread)[0])
        row = (task.part.share * self.bias.n_columns + column) * ROWS
        warpgroup.put(value, self.bias.db.at[pl.ds(row, ROWS)])

    def _slot(self, use: Array) -> Array:
        """The buffers of a use of the ring."""
        return jax.lax.rem(use, jnp.int32(self.operands.cut.stages))
