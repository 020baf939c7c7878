"""One program of a product with a block-sparse operand on Ampere: what its warpgroup does.

A program owns some rows of the result and a share of its block columns, longest first. The rows of
the dense operand that it needs, the panel, stay in shared memory where they fit; else each kept
block of weights brings its part of them along. The kept blocks of one column after another stream
through a ring of buffers, several ahead of the one that is multiplied, also from one column to the
next. A block that is dropped is never loaded.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.gelu import gelu
from pallas_kernels.mosaic import warpgroup
from pallas_kernels.mosaic.ampere import Instructions
from pallas_kernels.mosaic.ampere_product_tiles import Tiles


class Place(NamedTuple):
    """An entry of the lists of kept blocks, and the turn of the block column that it belongs to.

    Attributes:
      turn: how many columns of the program come before.
      column: the column.
      entry: the entry.
      last: where the entries of the column end; there is none at or behind it.
    """

    turn: Array
    column: Array
    entry: Array
    last: Array

    @property
    def exists(self) -> Array:
        """Whether there is an entry."""
        return self.entry < self.last


class Walk(NamedTuple):
    """The block columns of a program, a turn each, and the way through their entries.

    Attributes:
      start: of each column, where its entries begin, and where the last one's end.
      across: of each entry, the block of contracted features.
      order: the columns, longest first; every `n_shares`th of them is of this share.
      number: which share.
      n_shares: of how many.
    """

    start: Any
    across: Any
    order: Any
    number: Array
    n_shares: int

    def n_turns(self) -> Array:
        """How many columns the program computes."""
        n_columns = self.order.shape[0]
        return jax.lax.div(n_columns - self.number + self.n_shares - 1, self.n_shares)

    def beginning(self, turn: Array) -> Place:
        """The first entry of a turn's column; none of it behind the program's last turn."""
        place = turn * self.n_shares + self.number
        column = warpgroup.read(self.order, jnp.minimum(place, self.order.shape[0] - 1))
        first, last = warpgroup.read(self.start, column), warpgroup.read(self.start, column + 1)
        return Place(turn, column, first, jnp.where(turn < self.n_turns(), last, first))

    def after(self, place: Place) -> Place:
        """The next entry. Columns are longest first: behind an empty one there is none."""
        return jax.lax.cond(
            place.entry + 1 < place.last,
            lambda: place._replace(entry=place.entry + 1),
            lambda: self.beginning(place.turn + 1),
        )

    def block(self, entry: Array) -> Array:
        """The block of contracted features of an entry."""
        return warpgroup.read(self.across, entry)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A program, whose warpgroup copies and multiplies.

    Attributes:
      walk: which blocks it multiplies.
      tiles: how the product is cut.
      do: the instructions.
      panel: `[parts, rows, depth]` of the dense operand, in shared memory.
      ring: `[stages, ...]`, kept blocks of weights, in shared memory.
      staging: `[rows, width]` of the result, on their way out.
      x: the dense operand, in global memory as all four.
      kernel: the block-sparse one.
      bias: added to the sums, or None.
      y: the result.
      first_row: its first row of x and y.
      turned: whether a block of the kernel lies as `[width, depth]`.
      with_gelu: whether it is GELU of the sums that is written.
    """

    walk: Walk
    tiles: Tiles
    do: Instructions
    panel: Any
    ring: Any
    staging: Any
    x: Any
    kernel: Any
    bias: Any
    y: Any
    first_row: Array
    turned: bool
    with_gelu: bool

    @property
    def rows(self) -> Any:
        """Its rows of x and y."""
        return pl.ds(self.first_row, self.tiles.rows)

    def run(self) -> None:
        """Computes the result."""
        ahead = self.walk.beginning(jnp.int32(0))
        if self.tiles.is_resident:
            # Copies end in their order: whoever waits for a block of weights has waited for these.
            # A program whose columns are all empty waits for none, and starts none.
            pl.when(ahead.exists)(self._fetch_panel)
        for step in range(self.tiles.stages - 1):
            ahead = self._fetch(ahead, jnp.int32(step))
        state = jnp.int32(0), ahead
        jax.lax.fori_loop(0, self.walk.n_turns(), self._multiply_column, state)

    def _slot(self, step: Array) -> Array:
        """The buffer of the ring's `step`th use."""
        return jax.lax.rem(step, jnp.int32(self.tiles.stages))

    def _part_of_x(self, block: Array) -> Any:
        depth = self.panel.shape[2]
        return self.x.at[self.rows, pl.ds(block * depth, depth)]

    def _fetch_panel(self) -> None:
        """Starts the copies of the whole panel."""

        def fetch_part(block: Array, _: None) -> None:
            self.do.fetch(self._part_of_x(block), self.panel.at[block])

        jax.lax.fori_loop(0, self.panel.shape[0], fetch_part, None)

    def _fetch(self, place: Place, step: Array) -> Place:
        """Starts the copies of an entry, if it exists, for the ring's `step`th use.

        Returns:
          The next entry.
        """
        width, depth = self.staging.shape[1], self.panel.shape[2]

        @pl.when(place.exists)
        def _start() -> None:
            slot, block = self._slot(step), self.walk.block(place.entry)
            features = (pl.ds(place.column * width, width), pl.ds(block * depth, depth))
            source = self.kernel.at[features if self.turned else features[::-1]]
            self.do.fetch(source, self.ring.at[slot])
            if not self.tiles.is_resident:
                self.do.fetch(self._part_of_x(block), self.panel.at[slot])

        return self.walk.after(place)

    def _await(self, ahead: Place) -> None:
        """Waits for the entry that is next to be multiplied, `ahead` being next to be fetched."""
        # So far that entry and the stages - 2 behind it were fetched: it is there once no more than
        # those are on their way. Near the end there are fewer behind it: wait for all. A part of
        # the panel that does not stay is a copy of its own.
        copies = 1 if self.tiles.is_resident else 2
        n_behind = (self.tiles.stages - 2) * copies
        pl.when(ahead.exists)(lambda: self.do.wait(n_behind))
        pl.when(~ahead.exists)(lambda: self.do.wait(0))

    def _multiply_column(self, turn: Array, state: tuple[Array, Place]) -> tuple[Array, Place]:
        """Sums up a column, from the ring's use and with the entry ahead of `state`."""
        here = self.walk.beginning(turn)

        def add(entry: Array, state: tuple[Array, Array, Place]) -> tuple[Array, Array, Place]:
            total, step, ahead = state
            self._await(ahead)
            # All threads have waited, so all have read the buffer of the step before this one,
            # which is the next to be filled.
            ahead = self._fetch(ahead, step + self.tiles.stages - 1)
            slot = self._slot(step)
            block = self.walk.block(entry) if self.tiles.is_resident else slot
            weights = warpgroup.turned(self.ring.at[slot]) if self.turned else self.ring.at[slot]
            left, right = self.do.load(self.panel.at[block], "left"), self.do.load(weights, "right")
            return self.do.add_product(total, left, right), step + 1, ahead

        width, dtype = self.staging.shape[1], self.x.dtype
        zeros = self.do.zeros((self.tiles.rows, width), dtype)
        total, step, ahead = jax.lax.fori_loop(here.entry, here.last, add, (zeros, *state))
        features = pl.ds(here.column * width, width)
        if self.bias is not None:
            total = self.do.add_row(total, self.bias.at[features], dtype)
        if self.with_gelu:
            total, _ = gelu(total)
        self.do.write(total, self.staging, self.y.at[self.rows, features])
        return step, ahead
