"""One program of a product with a block-sparse operand on Hopper: what its warpgroups do.

A program owns some rows of the result and a share of its block columns. The rows of the dense
operand that it needs, the panel, stay in shared memory; the kept blocks of one column after another
stream through a ring of buffers. One warpgroup starts the copies, the others multiply. A block that
is dropped is never loaded. Longest columns first.

A panel that does not fit is cut along the contracted features. Its pieces take turns in two
buffers, and several columns are summed at once, so that a piece serves them all; of a piece the
blocks are loaded that any of these columns needs.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.gelu import gelu
from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.product_share import Share
from pallas_kernels.mosaic.product_tiles import ROWS, Tiles


class Memory(NamedTuple):
    """What the warpgroups of a program share.

    Attributes:
      panel: `[buffers, blocks, rows, depth]` of the dense operand.
      ring: `[stages, ...]`, kept blocks of weights.
      staging: `[n_compute, 64, width]` of the result, on their way out.
      panel_full: for each buffer, the barrier that opens when it is there.
      panel_free: that opens when no warpgroup reads it any more.
      ring_full: the same of the ring.
      ring_free: the same of the ring.
    """

    panel: Any
    ring: Any
    staging: Any
    panel_full: Any
    panel_free: Any
    ring_full: Any
    ring_free: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A program, which copies with one warpgroup and multiplies with the others.

    Attributes:
      share: which block columns it computes.
      memory: what its warpgroups share.
      x: the dense operand, in global memory as all four.
      kernel: the block-sparse one.
      bias: added to the sums, or None.
      y: the result.
      first_row: its first row of x and y.
      width: features of a block of the result.
      depth: features of a block that are contracted.
      turned: whether a block of the kernel lies as `[width, depth]`.
      with_gelu: whether it is GELU of the sums that is written.
    """

    share: Share
    memory: Memory
    x: Any
    kernel: Any
    bias: Any
    y: Any
    first_row: Array
    width: int
    depth: int
    turned: bool
    with_gelu: bool

    @property
    def tiles(self) -> Tiles:
        """How the product is cut."""
        return self.share.tiles

    @property
    def is_whole(self) -> bool:
        """Whether the panel is one piece, which is there once and for all."""
        return self.tiles.pieces == 1

    def copy(self) -> None:
        """What the copying warpgroup does."""

        def group(turn: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            def of_piece(piece: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
                use, step = state
                if not self.is_whole:
                    self._fetch_piece(use, piece, self.share.needs(turn, piece))
                for of_group in range(self.tiles.lines):
                    step = self._fetch_blocks(turn, of_group, piece, step)
                return use + 1, step

            return jax.lax.fori_loop(0, self.tiles.pieces, of_piece, state)

        if self.is_whole:
            self._fetch_piece(jnp.int32(0), jnp.int32(0), None)
        jax.lax.fori_loop(0, self.share.n_turns(), group, (jnp.int32(0), jnp.int32(0)))

    def _fetch_piece(self, use: Array, piece: Array, needed: Array | None) -> None:
        """Starts the copies of a piece of the panel, the buffers' `use`th.

        Args:
          use: which use of the buffers.
          piece: which piece.
          needed: a bit for each of its blocks, those to load; None for all.
        """
        tiles, memory = self.tiles, self.memory
        buffer = jax.lax.rem(use, jnp.int32(2)) if not self.is_whole else 0
        if not self.is_whole:

            @pl.when(use >= 2)
            def _free() -> None:
                launch.wait(memory.panel_free.at[buffer])

        def start_copy(block: Array) -> None:
            feature = (piece * tiles.blocks + block) * self.depth
            rows = pl.ds(self.first_row, tiles.n_compute * ROWS)
            launch.fetch(
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
            pl.when(~is_needed)(lambda: launch.arrive(memory.panel_full.at[buffer]))

        jax.lax.fori_loop(0, tiles.blocks, fetch_block, None)

    def _fetch_blocks(self, turn: Array, of_group: int, piece: Array, step: Array) -> Array:
        """Starts the copies of a column's blocks in a piece, from the ring's `step`th use on.

        Returns:
          The use after them.
        """
        memory, stages = self.memory, self.tiles.stages
        column, first, last = self.share.entries(turn, of_group, piece)

        def fetch_weights(entry: Array, step: Array) -> Array:
            slot = jax.lax.rem(step, jnp.int32(stages))

            @pl.when(step >= stages)
            def _free() -> None:
                launch.wait(memory.ring_free.at[slot])

            features = (
                pl.ds(column * self.width, self.width),
                pl.ds(self.share.block(entry) * self.depth, self.depth),
            )
            source = self.kernel.at[features if self.turned else features[::-1]]
            launch.fetch(source, memory.ring.at[slot], memory.ring_full.at[slot])
            return step + 1

        return jax.lax.fori_loop(first, last, fetch_weights, step)

    def multiply(self, thread: Array) -> None:
        """What a multiplying warpgroup does with its 64 rows."""
        memory, mine = self.memory, pl.ds(thread * ROWS, ROWS)

        def panel_block(buffer: Any, block: Array) -> Any:
            return memory.panel.at[buffer, block, mine]

        def group(turn: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            def sum_up(*totals: Any) -> tuple[Array, Array]:
                def of_piece(piece: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
                    use, step = state
                    buffer = 0 if self.is_whole else jax.lax.rem(use, jnp.int32(2))
                    if not self.is_whole:
                        launch.wait(memory.panel_full.at[buffer])
                    for of_group, total in enumerate(totals):
                        panel = functools.partial(panel_block, buffer)
                        step = self._add_blocks(total, panel, turn, of_group, piece, step)
                    if not self.is_whole:
                        # `_add_blocks` has left no product that reads the piece.
                        launch.arrive(memory.panel_free.at[buffer])
                    return use + 1, step

                after = jax.lax.fori_loop(0, self.tiles.pieces, of_piece, state)
                for of_group, total in enumerate(totals):
                    self._finish(total, thread, turn, of_group)
                return after

            return launch.with_accumulators((ROWS, self.width), self.tiles.lines, sum_up)

        if self.is_whole:
            launch.wait(memory.panel_full.at[0])
        jax.lax.fori_loop(0, self.share.n_turns(), group, (jnp.int32(0), jnp.int32(0)))
        launch.finish_writes()

    def _add_blocks(
        self,
        total: Any,
        panel_block: Callable[[Array], Any],
        turn: Array,
        of_group: int,
        piece: Array,
        step: Array,
    ) -> Array:
        """Adds a column's products with a piece of the panel, from the ring's `step`th use on.

        Returns:
          The use after them.
        """
        memory, stages = self.memory, self.tiles.stages
        _, first, last = self.share.entries(turn, of_group, piece)

        def free_before(step: Array) -> None:
            before = jax.lax.rem(step + stages - 1, jnp.int32(stages))
            launch.arrive(memory.ring_free.at[before])

        def add(entry: Array, step: Array) -> Array:
            slot = jax.lax.rem(step, jnp.int32(stages))
            block = self.share.block(entry) - piece * self.tiles.blocks
            launch.wait(memory.ring_full.at[slot])
            weights = memory.ring.at[slot]
            weights = launch.turned(weights) if self.turned else weights
            launch.start_product(total, panel_block(block), weights)
            # Products end in their order, so all but this one have: the buffer of the one before
            # is read no more. This one's own is given back one step later.
            launch.finish_products(1)
            pl.when(entry > first)(lambda: free_before(step))
            return step + 1

        step = jax.lax.fori_loop(first, last, add, step)
        # The last product of the loop still reads its buffer, and the panel.
        launch.finish_products(0)
        pl.when(last > first)(lambda: free_before(step))
        return step

    def _finish(self, total: Any, thread: Array, turn: Array, of_group: int) -> None:
        """Writes the sums of a block column."""
        column, exists = self.share.column(turn, of_group)
        features = pl.ds(column * self.width, self.width)
        value = total[...]
        if self.bias is not None:
            value = value + launch.load_row(self.bias.at[features], ROWS)
        if self.with_gelu:
            value, _ = gelu(value)

        @pl.when(exists)
        def _write() -> None:
            rows = pl.ds(self.first_row + thread * ROWS, ROWS)
            launch.write(value, self.memory.staging.at[thread], self.y.at[rows, features])
