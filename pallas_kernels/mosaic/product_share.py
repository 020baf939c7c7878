"""Which entries of the lists of kept blocks a program of a product multiplies, in which order."""

from typing import Any, NamedTuple

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

    The columns of a turn stand in `tiles.lines` ranks. Those of a rank are abreast: different
    warpgroups multiply them at the same time.

    Attributes:
      start: of each piece of each column, where its entries begin (`product_tiles.Pieces`).
      needed: of each piece for each group of columns, which blocks they need.
      steps: of each piece for each rank of columns, how many entries the longest has.
      across: of each entry, the block of contracted features.
      order: the columns, longest first; every `n_shares`th group of them is of this share.
      tiles: how the product is cut.
      number: which share.
      n_shares: of how many.
    """

    start: Any
    needed: Any
    steps: Any
    across: Any
    order: Any
    tiles: Tiles
    number: Array
    n_shares: int

    def n_turns(self) -> Array:
        """How many groups of columns the program computes."""
        n_groups = pl.cdiv(self.order.shape[0], self.tiles.group)
        return jax.lax.div(n_groups - self.number + self.n_shares - 1, self.n_shares)

    def column(self, turn: Array, rank: int, beside: Array | int) -> tuple[Array, Array]:
        """A block column of a group, and whether there is one: the last group may be short."""
        n_columns = self.order.shape[0]
        place = (self._group(turn) * self.tiles.lines + rank) * self.tiles.abreast + beside
        return warpgroup.read(self.order, jnp.minimum(place, n_columns - 1)), place < n_columns

    def entries(self, turn: Array, rank: int, beside: Array | int, piece: Array) -> Entries:
        """Those of a block column; none if there is no such column."""
        column, exists = self.column(turn, rank, beside)
        at = column * self.tiles.pieces + piece
        first = warpgroup.read(self.start, at)
        return Entries(column, first, jnp.where(exists, warpgroup.read(self.start, at + 1), first))

    def n_steps(self, turn: Array, rank: int, piece: Array) -> Array:
        """How many entries the longest column of a rank has in a piece of the panel."""
        rank_of_all = self._group(turn) * self.tiles.lines + rank
        return warpgroup.read(self.steps, rank_of_all * self.tiles.pieces + piece)

    def needs(self, turn: Array, piece: Array) -> Array:
        """The blocks of a piece of the panel that a group of columns needs, a bit each."""
        return warpgroup.read(self.needed, self._group(turn) * self.tiles.pieces + piece)

    def block(self, entry: Array) -> Array:
        """The block of contracted features of an entry; behind the last one that of the last."""
        return warpgroup.read(self.across, jnp.minimum(entry, self.across.shape[0] - 1))

    def _group(self, turn: Array) -> Array:
        return turn * self.n_shares + self.number
