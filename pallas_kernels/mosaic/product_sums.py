"""What a multiplying warpgroup of a product does on Hopper: sums of kept blocks go out."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.gelu import gelu
from pallas_kernels.mosaic import warpgroup
from pallas_kernels.mosaic.product_program import Program
from pallas_kernels.mosaic.product_tiles import ROWS


class Summing(Program):
    """A program as its multiplying warpgroups run it."""

    def add_turn(
        self,
        totals: Sequence[Any],
        turn: Array,
        beside: Array,
        above: Array,
        uses: tuple[Array, Array],
    ) -> tuple[Array, Array]:
        """Sums up a group of columns.

        Args:
          totals: of each rank, the sums of its column.
          turn: which group.
          beside: place of this warpgroup among those abreast.
          above: among those above each other.
          uses: how often the buffers of the panel, and those of the ring, were used before.

        Returns:
          How often they are used with it.
        """
        memory = self.memory

        def of_piece(piece: Array, uses: tuple[Array, Array]) -> tuple[Array, Array]:
            use, step = uses
            buffer = 0 if self.is_whole else jax.lax.rem(use, jnp.int32(2))
            if not self.is_whole:
                warpgroup.wait(memory.panel_full.at[buffer])
            panel = functools.partial(self.panel_block, buffer, above)
            for rank, total in enumerate(totals):
                step = self.add_blocks(total, panel, turn, rank, beside, piece, step)
            if not self.is_whole:
                # `add_blocks` has left no product that reads the piece.
                warpgroup.arrive(memory.panel_free.at[buffer])
            return use + 1, step

        return jax.lax.fori_loop(0, self.tiles.pieces, of_piece, uses)

    def panel_block(self, buffer: Array | int, above: Array, block: Array) -> Any:
        """A block of a piece of the panel, the 64 rows of a warpgroup."""
        return self.memory.panel.at[buffer, block, pl.ds(above * ROWS, ROWS)]

    def add_blocks(
        self,
        total: Any,
        panel_block: Callable[[Array], Any],
        turn: Array,
        rank: int,
        beside: Array,
        piece: Array,
        step: Array,
    ) -> Array:
        """Adds a column's products with a piece of the panel, from the ring's `step`th use on.

        Returns:
          The use after those of the longest column abreast.
        """
        memory, stages = self.memory, jnp.int32(self.tiles.stages)
        _, first, last = self.share.entries(turn, rank, beside, piece)

        def free_before(step: Array) -> None:
            warpgroup.arrive(memory.ring_free.at[jax.lax.rem(step + stages - 1, stages)])

        def add(entry: Array, step: Array) -> Array:
            slot = jax.lax.rem(step, stages)
            block = self.share.block(entry) - piece * self.tiles.blocks
            warpgroup.wait(memory.ring_full.at[slot])
            weights = memory.ring.at[slot, beside]
            weights = warpgroup.turned(weights) if self.turned else weights
            warpgroup.start_product(total, panel_block(block), weights)
            # Products end in their order, so all but this one have: the buffer of the one before
            # is read no more, and all warps had seen it filled: a product is one of the whole
            # warpgroup, though at a cluster's barrier its first warp arrives for all. This one's
            # own is given back one step later.
            warpgroup.finish_products(1)
            pl.when(entry > first)(lambda: free_before(step))
            return step + 1

        def pass_by(_: Array, step: Array) -> Array:
            # Nothing of this buffer is this column's. It is filled before it is given back, or the
            # barrier would count this for the use before; and all warps have seen it filled, or a
            # late one would look for the use after.
            slot = jax.lax.rem(step, stages)
            warpgroup.wait(memory.ring_full.at[slot])
            if self.tiles.cluster > 1:
                warpgroup.meet()
            warpgroup.arrive(memory.ring_free.at[slot])
            return step + 1

        step = jax.lax.fori_loop(first, last, add, step)
        # The last product of the loop still reads its buffer, and the panel.
        warpgroup.finish_products(0)
        pl.when(last > first)(lambda: free_before(step))
        if self.tiles.abreast == 1:
            return step
        n_steps = self.share.n_steps(turn, rank, piece)
        return jax.lax.fori_loop(last - first, n_steps, pass_by, step)

    def value(self, total: Any, column: Array) -> Array:
        """The result of a block column from its sums, float32 `[64, width]`."""
        value = total[...]
        if self.bias is not None:
            features = pl.ds(column * self.width, self.width)
            value = value + warpgroup.as_rows(warpgroup.load_row(self.bias.at[features]), ROWS)
        return gelu(value)[0] if self.with_gelu else value

    def write(
        self,
        value: Array,
        thread: Array,
        row: Array,
        column: Array,
        exists: Array,
        n_others: int = 0,
    ) -> None:
        """Writes the result of a block column, unless there is no such column.

        Args:
          value: float32 `[64, width]`.
          thread: which multiplying warpgroup this is.
          row: its first row.
          column: the column.
          exists: whether there is one.
          n_others: results that another product writes between two of this one.
        """

        @pl.when(exists)
        def _write() -> None:
            destination = self.y.at[pl.ds(row, ROWS), pl.ds(column * self.width, self.width)]
            warpgroup.write(value, self.memory.staging.at[thread], destination, n_others)
