"""One program of a product with a block-sparse operand on Hopper: what its warpgroups do.

The result is cut into tiles, some rows of one block column each. A program, of which there is one
for every multiprocessor, computes one tile after the other. For each kept block of the column the
rows of the dense operand that meet it and the block itself come through a ring of buffers: one
warpgroup starts the copies, and runs ahead into the next tiles while the others, which multiply,
write theirs. These may be two teams, with tiles in turn: one multiplies while the other writes.
A block that is dropped is never loaded, nor are the rows that only it would meet.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.gelu import gelu
from pallas_kernels.mosaic import warpgroup
from pallas_kernels.mosaic.product_tiles import ROWS
from pallas_kernels.mosaic.stream_tiles import StreamTiles
from pallas_kernels.mosaic.stream_walk import Tile, Walk


class Memory(NamedTuple):
    """What the warpgroups of a program share.

    Attributes:
      left: `[stages, rows, step]` of the dense operand.
      right: `[stages, ...]`, weights of kept blocks.
      staging: `[n, 64, width]` of the result, on their way out, and of hidden units, in.
      full: for each team and stage, the barrier that opens when both operands are there for it.
      free: that opens when no warpgroup reads them any more.
      staged: for each 64 rows of hidden units, the barrier that opens when they are there; or None.
    """

    left: Any
    right: Any
    staging: Any
    full: Any
    free: Any
    staged: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A program, as each of its warpgroups knows it.

    Attributes:
      tiles: how the product is cut.
      memory: what its warpgroups share.
      walk: its tiles, one after the other.
      x: the dense operand, in global memory as all four.
      kernel: the block-sparse one.
      bias: added to the sums, or None.
      y: the result.
      before: hidden units before GELU, or None. Then the sums are the gradient after it, and the
        result that before it.
      units: hidden units after GELU, the second result then.
      width: features of a block of the result.
      depth: features of a block that are contracted.
      step: those of a step.
      n_staged: how many times 64 rows each warpgroup may have on their way out.
      turned: whether a block of the kernel lies as `[width, depth]`.
      with_gelu: whether it is GELU of the sums that is written.
    """

    tiles: StreamTiles
    memory: Memory
    walk: Walk
    x: Any
    kernel: Any
    bias: Any
    y: Any
    before: Any
    units: Any
    width: int
    depth: int
    step: int
    n_staged: int
    turned: bool
    with_gelu: bool

    def slot(self, step: Array) -> Array:
        """The buffers of a step."""
        return jax.lax.rem(step, jnp.int32(self.tiles.stages))

    def full(self, team: Array, slot: Array) -> Any:
        """The barrier that opens when the buffers of a step are there for a team."""
        return self.memory.full.at[team * self.tiles.stages + slot]

    def team(self, turn: Array) -> Array:
        """Which warpgroups multiply a tile."""
        return jax.lax.rem(turn, jnp.int32(self.tiles.teams))

    def copy(self) -> None:
        """What the copying warpgroup does."""

        def of_tile(turn: Array, state: tuple[Array, Tile, Array]) -> Any:
            step, tile, block = state
            team = self.team(turn)
            # The next one is looked up here already: its way to memory overlaps with this one's.
            following = self.walk.tile(turn + 1)
            first_block = self.walk.block(following.first)

            def of_block(entry: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
                step, block = state
                next_block = self.walk.block(entry + 1)
                for part in range(self.depth // self.step):
                    self._fetch(tile, team, block, part, step + part)
                return step + self.depth // self.step, next_block

            step, _ = jax.lax.fori_loop(tile.first, tile.last, of_block, (step, block))
            return step, following, first_block

        tile = self.walk.tile(jnp.int32(0))
        state = jnp.int32(0), tile, self.walk.block(tile.first)
        n_steps, *_ = jax.lax.fori_loop(0, self.walk.n_turns(), of_tile, state)
        # A barrier ends in a phase that whoever waits for it has seen.
        for more in range(self.tiles.stages):
            self._free_slot(n_steps + more)

    def _free_slot(self, step: Array) -> Array:
        """Waits until the buffers of a step are free.

        Returns:
          Which ones they are.
        """
        slot = self.slot(step)

        @pl.when(step >= self.tiles.stages)
        def _free() -> None:
            warpgroup.wait(self.memory.free.at[slot])

        return slot

    def _fetch(self, tile: Tile, team: Array, block: Array, part: int, step: Array) -> None:
        """Starts the copies of a step, once its buffers are free."""
        memory, slot = self.memory, self._free_slot(step)
        full = self.full(team, slot)
        features = pl.ds(block * self.depth + part * self.step, self.step)
        rows = pl.ds(tile.above * self.tiles.rows, self.tiles.rows)
        warpgroup.fetch(self.x.at[rows, features], memory.left.at[slot], full)
        place = (pl.ds(tile.column * self.width, self.width), features)
        source = self.kernel.at[place if self.turned else place[::-1]]
        warpgroup.fetch(source, memory.right.at[slot], full)

    def multiply(self, thread: Array) -> None:
        """What a multiplying warpgroup does with its rows of each tile of its team."""
        n_teams = jnp.int32(self.tiles.teams)
        team, place = jax.lax.rem(thread, n_teams), jax.lax.div(thread, n_teams)

        def of_tile(turn: Array, state: tuple[Array, Tile]) -> Any:
            step, tile = state
            following = self.walk.tile(turn + 1)
            compute = functools.partial(self._compute, thread, team, place, tile, step)
            if self.tiles.teams == 1:
                compute()
            else:
                pl.when(self.team(turn) == team)(compute)
            return step + (tile.last - tile.first) * (self.depth // self.step), following

        state = jnp.int32(0), self.walk.tile(jnp.int32(0))
        jax.lax.fori_loop(0, self.walk.n_turns(), of_tile, state)
        warpgroup.finish_writes()

    def _compute(self, thread: Array, team: Array, place: Array, tile: Tile, step: Array) -> None:
        """Computes a warpgroup's rows of a tile, from the ring's `step`th use on.

        Args:
          thread: which multiplying warpgroup it is of all.
          team: its team.
          place: which one it is of that.
          tile: the tile.
          step: how often the buffers were used before.
        """
        # Read before the sums: its way to memory overlaps with theirs.
        self._fetch_units(thread, place, tile)
        bias = None
        if self.bias is not None:
            features = pl.ds(tile.column * self.width, self.width)
            bias = warpgroup.load_row(self.bias.at[features])

        def sum_up(*totals: Any) -> None:
            self._add_tile(totals, team, place, tile, step)
            for part, total in enumerate(totals):
                self._write(total, bias, thread, place, part, tile)

        warpgroup.with_accumulators((ROWS, self.width), self.tiles.tall, sum_up)

    def _add_tile(self, totals: Any, team: Array, place: Array, tile: Tile, first: Array) -> None:
        """Adds the products of a tile, from the ring's `first` use on."""
        memory, n_parts = self.memory, self.depth // self.step

        def free_before(step: Array) -> None:
            warpgroup.arrive(memory.free.at[self.slot(step - 1)])

        def add(step: Array, _: None) -> None:
            slot = self.slot(step)
            warpgroup.wait(self.full(team, slot))
            right = memory.right.at[slot]
            right = warpgroup.turned(right) if self.turned else right
            for part, total in enumerate(totals):
                rows = pl.ds((place * self.tiles.tall + part) * ROWS, ROWS)
                warpgroup.start_product(total, memory.left.at[slot, rows], right)
            # Products end in their order, so all but those of this step have: the buffers of the
            # one before are read no more, and all warps had seen them filled: a product is one of
            # the whole warpgroup. This step's own are given back one step later.
            warpgroup.finish_products(len(totals))
            pl.when(step > first)(functools.partial(free_before, step))

        after = first + (tile.last - tile.first) * n_parts
        jax.lax.fori_loop(first, after, add, None)
        # The sums are read: the last products have to be done, which read the last buffers.
        warpgroup.finish_products(0)
        pl.when(after > first)(functools.partial(free_before, after))

    def _fetch_units(self, thread: Array, place: Array, tile: Tile) -> None:
        """Starts the copies of a warpgroup's rows of hidden units, to where its results go later.

        The results of the tile before have left, and all warps had read its hidden units: they met
        before they wrote.
        """
        if self.before is None:
            return
        warpgroup.finish_writes()
        for part in range(self.tiles.tall):
            own = self._staged(thread, part)
            source = self.before.at[self._rows(place, part, tile)]
            warpgroup.fetch(source, self.memory.staging.at[own], self.memory.staged.at[own])

    def _staged(self, thread: Array, part: int) -> Array:
        """Which staging memory a warpgroup takes for 64 of its rows."""
        return thread * self.n_staged + part % self.n_staged

    def _rows(self, place: Array, part: int, tile: Tile) -> Any:
        """Which 64 rows of a tile are a warpgroup's, and which features."""
        row = tile.above * self.tiles.rows + (place * self.tiles.tall + part) * ROWS
        return pl.ds(row, ROWS), pl.ds(tile.column * self.width, self.width)

    def _write(
        self, total: Any, bias: Any, thread: Array, place: Array, part: int, tile: Tile
    ) -> None:
        """Writes 64 rows of a tile."""
        destination, value = self._rows(place, part, tile), total[...]
        staging = self.memory.staging.at[self._staged(thread, part)]
        if self.before is not None:
            warpgroup.wait(self.memory.staged.at[self._staged(thread, part)])
            units, slope = gelu(warpgroup.load_sums(staging))
            warpgroup.meet()
            warpgroup.write(units, staging, self.units.at[destination])
            warpgroup.write(value * slope, staging, self.y.at[destination])
            return
        value = value if bias is None else value + warpgroup.as_rows(bias, ROWS)
        value = gelu(value)[0] if self.with_gelu else value
        warpgroup.write(value, staging, self.y.at[destination], self.n_staged - 1)
