"""One program of two fused layers on Hopper: what its warpgroups do.

A program owns some rows. Their inputs stay in shared memory as the panel of the first product;
GELU of that is the panel of the second one, in pieces that take turns in two buffers, and never
leaves the program. The sums of all outputs stay in registers, while one piece of hidden units after
another is computed and multiplied. Kept blocks of either kernel stream through a ring of their own.

Both products are those of `product_program`, in the same clusters: `Copying` starts the copies of
both in the order in which `Summing` multiplies.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels.mosaic import product_copies, product_sums, warpgroup
from pallas_kernels.mosaic.mlp_tiles import MlpTiles
from pallas_kernels.mosaic.product_tiles import ROWS


def _turns(tiles: MlpTiles, piece: Array, n_units: int) -> tuple[Array, Array]:
    """The turns of the first product that compute a piece; the last one may have fewer.

    Args:
      tiles: how the pair is cut.
      piece: which piece.
      n_units: blocks of hidden units.
    """
    n_turns = -(-n_units // tiles.abreast)
    first = piece * tiles.turns
    return first, jnp.minimum(first + tiles.turns, n_turns)


@dataclasses.dataclass(frozen=True, eq=False)
class Copying:
    """A program as its copying warpgroup runs it.

    Attributes:
      first: the product to the hidden units.
      second: the product from them, whose panel nobody copies.
      tiles: how both are cut.
    """

    first: product_copies.Copying
    second: product_copies.Copying
    tiles: MlpTiles

    def copy(self) -> None:
        """What the copying warpgroup does."""
        zero, n_units = jnp.int32(0), self.first.share.n_columns

        def of_turn(turn: Array, step: Array) -> Array:
            return self.first.fetch_blocks(turn, 0, zero, step)

        def of_piece(piece: Array, steps: tuple[Array, Array]) -> tuple[Array, Array]:
            to_units, from_units = steps
            to_units = jax.lax.fori_loop(*_turns(self.tiles, piece, n_units), of_turn, to_units)
            for rank in range(self.tiles.lines):
                from_units = self.second.fetch_blocks(zero, rank, piece, from_units)
            return to_units, from_units

        self.first.fetch_piece(zero, zero, None)
        steps = jax.lax.fori_loop(0, self.tiles.pieces, of_piece, (zero, zero))
        self.first.await_end(steps[0])
        self.second.await_end(steps[1])


@dataclasses.dataclass(frozen=True, eq=False)
class Summing:
    """A program as its multiplying warpgroups run it.

    Attributes:
      first: the product to the hidden units, with GELU.
      second: the product from them.
      tiles: how both are cut.
      hidden: `[buffers, blocks, tall, 64, width]`, the pieces of hidden units.
      hidden_full: for each buffer, the barrier that opens when all warpgroups have stored theirs.
      residual: whether the inputs are added to the outputs.
    """

    first: product_sums.Summing
    second: product_sums.Summing
    tiles: MlpTiles
    hidden: Any
    hidden_full: Any
    residual: bool

    def multiply(self, thread: Array) -> None:
        """What a multiplying warpgroup does with its 64 rows of the columns that are its own."""
        tall = jnp.int32(self.tiles.n_compute // self.tiles.abreast)
        beside, above = jax.lax.div(thread, tall), jax.lax.rem(thread, tall)
        zero, first, second = jnp.int32(0), self.first, self.second

        def sum_up(*totals: Any) -> None:
            def of_piece(piece: Array, steps: tuple[Array, Array]) -> tuple[Array, Array]:
                to_units, from_units = steps
                buffer = jax.lax.rem(piece, jnp.int32(self.tiles.buffers))
                of_turn = functools.partial(self._store_units, piece, buffer, beside, above)
                turns = _turns(self.tiles, piece, first.share.n_columns)
                to_units = jax.lax.fori_loop(*turns, of_turn, to_units)
                # A warpgroup arrives when it is done with the piece before this one. So when this
                # barrier opens nobody reads that any more, and the next piece may take its place.
                warpgroup.meet()
                warpgroup.arrive(self.hidden_full.at[buffer])
                warpgroup.wait(self.hidden_full.at[buffer])
                panel = functools.partial(self._units, buffer, above)
                for rank, total in enumerate(totals):
                    from_units = second.add_blocks(
                        total, panel, zero, rank, beside, piece, from_units
                    )
                return to_units, from_units

            jax.lax.fori_loop(0, self.tiles.pieces, of_piece, (zero, zero))
            for rank, total in enumerate(totals):
                column, exists = second.share.column(zero, rank, beside)
                value = second.value(total, column)
                if self.residual:
                    value = value + warpgroup.load_sums(first.panel_block(zero, above, column))
                row = second.first_row + above * ROWS
                second.write(value, thread, row, column, exists)

        warpgroup.wait(first.memory.panel_full.at[0])
        warpgroup.with_accumulators((ROWS, second.width), self.tiles.lines, sum_up)
        warpgroup.finish_writes()

    def _store_units(
        self, piece: Array, buffer: Array, beside: Array, above: Array, turn: Array, step: Array
    ) -> Array:
        """Computes the hidden units of a turn, from the first ring's `step`th use on.

        Returns:
          The use after them.
        """
        first, zero = self.first, jnp.int32(0)

        def sum_up(total: Any) -> Array:
            panel = functools.partial(first.panel_block, zero, above)
            after = first.add_blocks(total, panel, turn, 0, beside, zero, step)
            column, _ = first.share.column(turn, 0, beside)
            # Behind the last column it is that again, in a place that no product reads.
            block = turn * self.tiles.abreast + beside - piece * self.tiles.blocks
            warpgroup.store(first.value(total, column), self._units(buffer, above, block))
            return after

        return warpgroup.with_accumulators((ROWS, first.width), 1, sum_up)

    def _units(self, buffer: Array, above: Array, block: Array) -> Any:
        """A block of hidden units, 64 rows of them."""
        return self.hidden.at[buffer, block, above]
