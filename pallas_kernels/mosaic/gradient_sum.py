"""dW from the sums of every share of the rows, in one pass that writes it as it lies in memory.

A program writes 64 rows of at most 64 features of dW: a part of one block, kept or dropped, or
blocks that lie above each other. What XLA makes of the same reads each number by itself.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float

from pallas_kernels.lists import ListedBlocks
from pallas_kernels.mosaic import launch, warpgroup
from pallas_kernels.mosaic.gradient_tiles import ROWS
from pallas_kernels.sparse_layer import SparseLayer

_MOST_BYTES, _MOST_COPIES = 128 << 10, 32
"""Of the sums of all shares in shared memory; of parts of these, each of which is code of its own.
"""


def fits(n_shares: int, layer: SparseLayer) -> bool:
    """Whether the sums of all shares have room, and their parts are few."""
    n_bytes = n_shares * ROWS * min(layer.block[0], ROWS) * 4
    return n_shares * n_above(layer) <= _MOST_COPIES and n_bytes <= _MOST_BYTES


def sum_shares(
    parts: Float[Array, "shares_entries_height width"],
    blocks: ListedBlocks,
    layer: SparseLayer,
    n_shares: int,
    *,
    by_rows: bool,
    interpret: bool,
) -> Float[Array, "in out"]:
    """`dW`, exactly zero in dropped blocks.

    Args:
      parts: float32, of every share and every entry of the lists a block `[cols, rows]`, one below
        the other.
      blocks: the kept blocks.
      layer: the layer.
      n_shares: how many shares of the rows there are.
      by_rows: whether entries are listed by block rows, not by columns.
      interpret: whether the kernel is interpreted.
    """
    width = min(layer.block[0], ROWS)
    lists = blocks.rows if by_rows else blocks.columns
    return launch.launch(
        "sparsemlp_sum_shares",
        functools.partial(_kernel, layer=layer, n_shares=n_shares, by_rows=by_rows),
        [blocks.which, lists.before, parts],
        grid=(n_tiles(layer),),
        out=jax.ShapeDtypeStruct(layer.kernel_shape, jnp.dtype(layer.dtype)),
        scratch={
            "sums": launch.shared((n_shares, ROWS, width), jnp.float32, min(32, width)),
            "staging": launch.shared((ROWS, width), layer.dtype, min(32, width)),
            "full": launch.barriers(1, arrivals=n_shares * n_above(layer)),
        },
        n_warpgroups=1,
        interpret=interpret,
    )


def _kernel(
    which: Any,
    before: Any,
    parts: Any,
    dw: Any,
    *,
    layer: SparseLayer,
    n_shares: int,
    by_rows: bool,
    sums: Any,
    staging: Any,
    full: Any,
) -> None:
    table = warpgroup.Table(before, warpgroup.read(which, 0))
    tile = tile_of(jax.lax.axis_index(launch.X), layer, table, by_rows=by_rows)

    @pl.when(tile.is_kept)
    def _sum() -> None:
        for i, own in enumerate(tile.blocks):
            for share in range(n_shares):
                place = share * layer.n_kept + own.entry
                if len(tile.blocks) > 1:
                    # Behind the last share of all lies nothing, of which zeros are loaded.
                    place = jnp.where(own.is_kept, place, n_shares * layer.n_kept)
                above = pl.ds(i * tile.height, tile.height)
                warpgroup.fetch(tile.source(parts, place), sums.at[share, above], full.at[0])
        warpgroup.wait(full.at[0])
        total = warpgroup.load_sums(sums.at[0])
        for share in range(1, n_shares):
            total = total + warpgroup.load_sums(sums.at[share])
        warpgroup.write(total, staging, tile.destination(dw))

    @pl.when(~tile.is_kept)
    def _clear() -> None:
        warpgroup.write(jnp.zeros((ROWS, tile.width), jnp.float32), staging, tile.destination(dw))

    warpgroup.finish_writes()


class Block(NamedTuple):
    """A block of dW: its block row, its first entry in the lists, and whether it is kept."""

    line: Array
    entry: Array
    is_kept: Bool[Array, ""]


class Tile(NamedTuple):
    """What a program writes of dW: 64 rows of at most 64 features.

    Attributes:
      blocks: those that lie there, one above the other; or one, of which it is a part.
      column: their block column.
      above: which 64 rows of dW.
      beside: which features.
      inside: which rows of a block: of so many parts of `height` rows, the number of one.
      part: which features of one, likewise.
      tall: how many such parts of rows a block has.
      height: how many rows of one block.
      width: how many features.
    """

    blocks: list[Block]
    column: Array
    above: Array
    beside: Array
    inside: Array
    part: Array
    tall: int
    height: int
    width: int

    @property
    def is_kept(self) -> Bool[Array, ""]:
        """Whether any block is."""
        return functools.reduce(jnp.logical_or, (own.is_kept for own in self.blocks))

    def source(self, parts: Any, place: Array) -> Any:
        """The rows and features of a block of sums, by its number among those in memory."""
        first = (place * self.tall + self.inside) * self.height
        return parts.at[pl.ds(first, self.height), pl.ds(self.part * self.width, self.width)]

    def destination(self, dw: Any) -> Any:
        """Where it lies in dW."""
        rows = pl.ds(self.above * ROWS, ROWS)
        return dw.at[rows, pl.ds(self.beside * self.width, self.width)]


def n_tiles(layer: SparseLayer) -> int:
    """How many of them dW has."""
    n_in, n_out = layer.kernel_shape
    return pl.cdiv(n_in, ROWS) * n_out // min(layer.block[0], ROWS)


def n_above(layer: SparseLayer) -> int:
    """Blocks that lie above each other in 64 rows of dW."""
    return max(1, ROWS // layer.block[1])


def tile_of(index: Array, layer: SparseLayer, before: warpgroup.Table, *, by_rows: bool) -> Tile:
    """A tile by its number.

    Args:
      index: less than `n_tiles`.
      layer: the layer.
      before: of each block, line by line, how many entries lie before it.
      by_rows: whether lines are block rows, not block columns.
    """
    rows, cols = layer.block
    (down, across), width, height = layer.grid_shape, min(rows, ROWS), min(cols, ROWS)
    tall, wide = jnp.int32(cols // height), jnp.int32(rows // width)
    above, beside = _divided(index, across * wide)
    (first_line, inside), (column, part) = _divided(above, tall), _divided(beside, wide)

    def block(line: Array) -> Block:
        """A block; a dropped one where there are not so many rows."""
        is_there = line < down
        line = jnp.minimum(line, down - 1)
        number = line * across + column if by_rows else column * down + line
        entry = before.read(number)
        return Block(line, entry, is_there & (before.read(number + 1) > entry))

    n_blocks = n_above(layer)
    blocks = [block(first_line * n_blocks + i) for i in range(n_blocks)]
    return Tile(blocks, column, above, beside, inside, part, cols // height, height, width)


def _divided(number: Array, by: Array) -> tuple[Array, Array]:
    return jax.lax.div(number, by), jax.lax.rem(number, by)
