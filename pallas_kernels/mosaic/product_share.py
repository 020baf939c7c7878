"""Which entries of the lists of kept blocks a program of a product multiplies."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.mosaic import warpgroup
from pallas_kernels.mosaic.product_tiles import Tiles


class Entries(NamedTuple):
    """The entries of a block column in a piece of the panel.

    Attributes:
      column: which block column.
      first: its first entry.
      last: the one behind its last.
    """

    column: Array
    first: Array
    last: Array


class Share(NamedTuple):
    """The block columns of a program, in turns of `tiles.group` that are summed at once.

    They are every `n_shares`th group of the columns as they lie. The columns of a turn stand in
    `tiles.lines` ranks. Those of a rank are abreast: different warpgroups multiply them at the same
    time.

    Attributes:
      before: of each block, column by column, how many entries lie before it (`BlockLists`); or of
        each column, of a panel in one piece.
      needed: of each piece for each group of columns, which blocks they need
        (`product_tiles.needed_blocks`); None if nobody asks.
      steps: of each piece for each rank of columns, how many entries the longest has
        (`product_tiles.steps_of_ranks`).
      across: of each entry, the block of contracted features.
      ends: of each column, where its entries end, if not where the next one's begin; of a panel in
        one piece.
      tiles: how the product is cut.
      n_columns: how many block columns there are.
      number: which share.
      n_shares: of how many.
    """

    before: warpgroup.Table
    needed: warpgroup.Table | None
    steps: warpgroup.Table
    across: warpgroup.Table
    ends: warpgroup.Table | None
    tiles: Tiles
    n_columns: int
    number: Array
    n_shares: int

    def n_turns(self) -> Array:
        """How many groups of columns the program computes."""
        n_groups = pl.cdiv(self.n_columns, self.tiles.group)
        return jax.lax.div(n_groups - self.number + self.n_shares - 1, self.n_shares)

    def column(self, turn: Array, rank: int, beside: Array | int) -> tuple[Array, Array]:
        """A block column of a group, and whether there is one: the last group may be short."""
        place = (self._group(turn) * self.tiles.lines + rank) * self.tiles.abreast + beside
        column = jnp.minimum(place, self.n_columns - 1)
        return column, place < self.n_columns

    def entries(self, turn: Array, rank: int, beside: Array | int, piece: Array) -> Entries:
        """Those of a block column; none if there is no such column."""
        column, exists = self.column(turn, rank, beside)
        first = self._entries_before(column, piece)
        if self.ends is None:
            last = self._entries_before(column, piece + 1)
        else:
            last = self.ends.read(column)
        return Entries(column, first, jnp.where(exists, last, first))

    def n_steps(self, turn: Array, rank: int, piece: Array) -> Array:
        """How many entries the longest column of a rank has in a piece of the panel."""
        rank_of_all = self._group(turn) * self.tiles.lines + rank
        return self.steps.read(rank_of_all * self.tiles.pieces + piece)

    def needs(self, turn: Array, piece: Array) -> Array:
        """The blocks of a piece of the panel that a group of columns needs, a bit each."""
        assert self.needed is not None
        return self.needed.read(self._group(turn) * self.tiles.pieces + piece)

    def block(self, entry: Array) -> Array:
        """The block of contracted features of an entry; behind the last one that of the last."""
        return self.across.read(jnp.minimum(entry, self.across.size - 1))

    def _entries_before(self, column: Array, piece: Array) -> Array:
        """How many entries lie before a piece of a column."""
        n_blocks = (self.before.size - 1) // self.n_columns
        inside = jnp.minimum(piece * self.tiles.blocks, n_blocks)
        return self.before.read(column * n_blocks + inside)

    def _group(self, turn: Array) -> Array:
        return turn * self.n_shares + self.number
