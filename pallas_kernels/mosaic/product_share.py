"""Which entries of the lists of kept blocks a program of a product multiplies, in which order."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.product_tiles import Tiles


class Share(NamedTuple):
    """The block columns of a program, in turns of `tiles.lines` that are summed at once.

    Attributes:
      start: of each piece of each column, where its entries begin (`product_tiles.Pieces`).
      needed: of each piece for each group of columns, which blocks they need.
      across: of each entry, the block of contracted features.
      order: the columns, longest first; every `n_shares`th group of them is of this share.
      tiles: how the product is cut.
      number: which share.
      n_shares: of how many.
    """

    start: Any
    needed: Any
    across: Any
    order: Any
    tiles: Tiles
    number: Array
    n_shares: int

    def n_turns(self) -> Array:
        """How many groups of columns the program computes."""
        n_groups = pl.cdiv(self.order.shape[0], self.tiles.lines)
        return jax.lax.div(n_groups - self.number + self.n_shares - 1, self.n_shares)

    def column(self, turn: Array, of_group: int) -> tuple[Array, Array]:
        """A block column of a group, and whether there is one: the last group may be short."""
        n_columns = self.order.shape[0]
        place = (turn * self.n_shares + self.number) * self.tiles.lines + of_group
        return launch.read(self.order, jnp.minimum(place, n_columns - 1)), place < n_columns

    def entries(self, turn: Array, of_group: int, piece: Array) -> tuple[Array, Array, Array]:
        """A block column, its first entry in a piece of the panel, and where they end."""
        column, exists = self.column(turn, of_group)
        at = column * (self.tiles.pieces + 1) + piece
        first = launch.read(self.start, at)
        return column, first, jnp.where(exists, launch.read(self.start, at + 1), first)

    def needs(self, turn: Array, piece: Array) -> Array:
        """The blocks of a piece of the panel that a group of columns needs, a bit each."""
        group = turn * self.n_shares + self.number
        return launch.read(self.needed, group * self.tiles.pieces + piece)

    def block(self, entry: Array) -> Array:
        """The block of contracted features of an entry."""
        return launch.read(self.across, entry)
