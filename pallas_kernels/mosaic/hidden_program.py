"""One program of hidden units and their gradient on Hopper: what its warpgroups do.

Both are products with the same columns, by programs as `product_program` tells, in turns: of a
group of columns first the sums of `x W1`, then those of `dy W2^T`. From both, while they are in
registers, come GELU of the units and the gradient before GELU, so that neither is written before
GELU and read again.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels.gelu import gelu
from pallas_kernels.mosaic import product_copies, product_sums, warpgroup
from pallas_kernels.mosaic.product_tiles import ROWS

type Uses = tuple[Array, Array, Array]
"""How often the buffers of the panels, those of the first ring and of the second were used."""


@dataclasses.dataclass(frozen=True, eq=False)
class Copying:
    """A program as its copying warpgroup runs it.

    Attributes:
      units: the product before GELU.
      gradient: the one that gives the gradient after it. Where panels come in pieces both have the
        same buffers for them.
    """

    units: product_copies.Copying
    gradient: product_copies.Copying

    def copy(self) -> None:
        """What the copying warpgroup does."""

        def of_turn(turn: Array, uses: Uses) -> Uses:
            use, step1, step2 = uses
            use, step1 = self.units.fetch_turn(turn, (use, step1))
            use, step2 = self.gradient.fetch_turn(turn, (use, step2))
            return use, step1, step2

        products = self.units, self.gradient
        for product in products:
            if product.is_whole:
                product.fetch_piece(jnp.int32(0), jnp.int32(0), None)
        use, *steps = jax.lax.fori_loop(0, self.units.share.n_turns(), of_turn, _start())
        for product, step in zip(products, steps, strict=True):
            product.await_end(step)
        self.units.await_panels(use)


@dataclasses.dataclass(frozen=True, eq=False)
class Summing:
    """A program as its multiplying warpgroups run it.

    Attributes:
      units: the product before GELU, whose result is the units after it.
      gradient: the one that gives the gradient after GELU, whose result is that before it.
    """

    units: product_sums.Summing
    gradient: product_sums.Summing

    def multiply(self, thread: Array) -> None:
        """What a multiplying warpgroup does with its 64 rows of the columns that are its own."""
        units, gradient, lines = self.units, self.gradient, self.units.tiles.lines
        tall = jnp.int32(units.tiles.rows // ROWS)
        beside, above = jax.lax.div(thread, tall), jax.lax.rem(thread, tall)
        row = units.first_row + above * ROWS

        def of_turn(turn: Array, uses: Uses) -> Uses:
            def sum_up(*totals: Any) -> Uses:
                use, step1, step2 = uses
                place = turn, beside, above
                use, step1 = units.add_turn(totals[:lines], *place, (use, step1))
                use, step2 = gradient.add_turn(totals[lines:], *place, (use, step2))
                for rank in range(lines):
                    column, exists = units.share.column(turn, rank, beside)
                    where = thread, row, column, exists
                    value, slope = gelu(units.value(totals[rank], column))
                    units.write(value, *where, n_others=1)
                    change = slope * gradient.value(totals[lines + rank], column)
                    gradient.write(change, *where, n_others=1)
                return use, step1, step2

            return warpgroup.with_accumulators((ROWS, units.width), 2 * lines, sum_up)

        for product in (units, gradient):
            if product.is_whole:
                warpgroup.wait(product.memory.panel_full.at[0])
        jax.lax.fori_loop(0, units.share.n_turns(), of_turn, _start())
        warpgroup.finish_writes()


def _start() -> Uses:
    zero = jnp.int32(0)
    return zero, zero, zero
