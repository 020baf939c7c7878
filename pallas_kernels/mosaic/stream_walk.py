"""Which tiles a program of a streamed product computes, and in which order.

Where the second-level cache holds the whole dense operand, the tiles of the longest columns come
first, and in every other turn the programs take theirs in reverse, so that those get the last ones
that have least: with many turns all have as much to load, but for a few percent. Else tiles of the
same rows follow each other, so that what they read of that operand stays in the cache. Each rows'
columns start with another one then, which evens out less.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels.mosaic.warpgroup import Table

CACHED_BYTES = 20_000_000
"""Of a dense operand that stays in the second-level cache: less than half of an H200's, each half
of which may hold all of it, beside what is written."""


class Tile(NamedTuple):
    """A tile of the result.

    Attributes:
      above: how many tiles lie above it.
      column: its block column.
      first: the first entry of that in the lists of kept blocks.
      last: the one behind its last.
    """

    above: Array
    column: Array
    first: Array
    last: Array


@dataclasses.dataclass(frozen=True, eq=False)
class Walk:
    """The tiles of a program.

    Attributes:
      start: of each block column, its first entry in the lists of kept blocks.
      order: the columns, longest first.
      across: of each entry, the block of contracted features.
      number: which program.
      n_programs: of how many.
      n_lines: block columns.
      n_row_tiles: tiles above each other.
      longest_first: whether tiles go by the length of their columns, not by their rows.
    """

    start: Table
    order: Table
    across: Table
    number: Array
    n_programs: int
    n_lines: int
    n_row_tiles: int
    longest_first: bool

    @property
    def n_tiles(self) -> int:
        """How many tiles all programs have."""
        return self.n_lines * self.n_row_tiles

    def n_turns(self) -> Array:
        """How many tiles this program computes."""
        n_full, left = divmod(self.n_tiles, self.n_programs)
        return n_full + (self._place(jnp.int32(n_full)) < left).astype(jnp.int32)

    def tile(self, turn: Array) -> Tile:
        """A tile of this program; behind its last one any."""
        index = jnp.minimum(turn * self.n_programs + self._place(turn), self.n_tiles - 1)
        if self.longest_first:
            above = jax.lax.rem(index, jnp.int32(self.n_row_tiles))
            rank = jax.lax.div(index, jnp.int32(self.n_row_tiles))
        else:
            above = jax.lax.div(index, jnp.int32(self.n_lines))
            rank = jax.lax.rem(index + above, jnp.int32(self.n_lines))
        column = self.order.read(rank)
        return Tile(above, column, self.start.read(column), self.start.read(column + 1))

    def _place(self, turn: Array) -> Array:
        """Which of the tiles of a turn is this program's."""
        if not self.longest_first:
            return self.number
        is_odd = jax.lax.rem(turn, jnp.int32(2)) == 1
        return jnp.where(is_odd, self.n_programs - 1 - self.number, self.number)

    def block(self, entry: Array) -> Array:
        """The block of contracted features of an entry; behind the last one that of the last."""
        return self.across.read(jnp.minimum(entry, self.across.size - 1))
