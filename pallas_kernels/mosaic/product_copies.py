"""What the copying warpgroup of a product does on Hopper: panels and kept blocks come in."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.mosaic import warpgroup
from pallas_kernels.mosaic.product_program import Program


class Copying(Program):
    """A program as its copying warpgroup runs it."""

    def fetch_turn(self, turn: Array, uses: tuple[Array, Array]) -> tuple[Array, Array]:
        """Starts the copies of a group of columns.

        Args:
          turn: which group.
          uses: how often the buffers of the panel, and those of the ring, were used before.

        Returns:
          How often they are used with it.
        """

        def of_piece(piece: Array, uses: tuple[Array, Array]) -> tuple[Array, Array]:
            use, step = uses
            if not self.is_whole:
                self.fetch_piece(use, piece, self.share.needs(turn, piece))
            for rank in range(self.tiles.lines):
                step = self.fetch_blocks(turn, rank, piece, step)
            return use + 1, step

        return jax.lax.fori_loop(0, self.tiles.pieces, of_piece, uses)

    def await_end(self, n_steps: Array) -> None:
        """Waits until all programs of the cluster are done with the ring, after so many uses.

        They arrive at the barriers of this program, which has to be there for that; and a barrier
        ends in a phase that whoever waits for it has seen.
        """
        for more in range(self.tiles.stages):
            self._free_slot(n_steps + more)

    def await_panels(self, n_uses: Array) -> None:
        """Waits until nobody reads a panel in pieces, after so many uses of its buffers."""
        if not self.is_whole:
            for more in range(2):
                self._free_buffer(n_uses + more)

    def fetch_piece(self, use: Array, piece: Array, needed: Array | None) -> None:
        """Starts the copies of a piece of the panel, the buffers' `use`th.

        Args:
          use: which use of the buffers.
          piece: which piece.
          needed: a bit for each of its blocks, those to load; None for all.
        """
        tiles, memory = self.tiles, self.memory
        buffer = 0 if self.is_whole else self._free_buffer(use)

        def start_copy(block: Array) -> None:
            feature = (piece * tiles.blocks + block) * self.depth
            rows = pl.ds(self.first_row, tiles.rows)
            warpgroup.fetch(
                self.x.at[rows, pl.ds(feature, self.depth)],
                memory.panel.at[buffer, block],
                memory.panel_full.at[buffer],
            )

        def fetch_block(block: Array, _: None) -> None:
            if needed is None:
                start_copy(block)
                return
            is_needed = jax.lax.shift_right_logical(needed, block) & 1 == 1
            pl.when(is_needed)(lambda: start_copy(block))
            # The barrier counts every block of a piece, whether it comes or not.
            pl.when(~is_needed)(lambda: warpgroup.arrive(memory.panel_full.at[buffer]))

        jax.lax.fori_loop(0, tiles.blocks, fetch_block, None)

    def fetch_blocks(self, turn: Array, rank: int, piece: Array, step: Array) -> Array:
        """Starts the copies of a rank's blocks in a piece, from the ring's `step`th use on.

        Returns:
          The use after them.
        """
        memory, abreast = self.memory, self.tiles.abreast
        columns = [self.share.entries(turn, rank, beside, piece) for beside in range(abreast)]

        def fetch_weights(index: Array, step: Array) -> Array:
            slot = self._free_slot(step)
            full = memory.ring_full.at[slot]
            # All are read before the first copy starts, so that their ways to memory overlap.
            blocks = [self.share.block(first + index) for _, first, _ in columns]
            for beside, (column, first, last) in enumerate(columns):
                destination = memory.ring.at[slot, beside]
                fetch = functools.partial(
                    self._fetch_weights, column, blocks[beside], destination, full
                )
                is_there = first + index < last
                pl.when(is_there)(fetch)
                # The barrier counts every column, whether it has another block or not.
                pl.when(~is_there)(functools.partial(warpgroup.arrive, full))
            return step + 1

        return jax.lax.fori_loop(0, self.share.n_steps(turn, rank, piece), fetch_weights, step)

    def _free_buffer(self, use: Array) -> Array:
        """Waits until the panel's `use`th use may begin, which is in pieces.

        Returns:
          Its buffer.
        """
        buffer = jax.lax.rem(use, jnp.int32(2))

        @pl.when(use >= 2)
        def _free() -> None:
            warpgroup.wait(self.memory.panel_free.at[buffer])

        return buffer

    def _free_slot(self, step: Array) -> Array:
        """Waits until the ring's `step`th use may begin.

        Returns:
          Its buffer.
        """
        slot = jax.lax.rem(step, jnp.int32(self.tiles.stages))

        @pl.when(step >= self.tiles.stages)
        def _free() -> None:
            warpgroup.wait(self.memory.ring_free.at[slot])

        return slot

    def _fetch_weights(self, column: Array, block: Array, destination: Any, full: Any) -> None:
        """Starts the copy of a block of weights; in a cluster of this program's part, to all."""
        features = (
            pl.ds(column * self.width, self.width),
            pl.ds(block * self.depth, self.depth),
        )
        source = self.kernel.at[features if self.turned else features[::-1]]
        warpgroup.fetch(source, destination, full, together=self.tiles.cluster > 1)
