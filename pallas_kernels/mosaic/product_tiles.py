"""How products with a block-sparse operand are cut into programs, panels and rings on Hopper."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Int

from pallas_kernels.lists import BlockLists
from pallas_kernels.mosaic import launch
from pallas_kernels.sparse_layer import SparseLayer

ROWS = 64
"""Rows of a warpgroup's products, which the hardware sets."""
STAGES = (16, 8, 4, 2)
"""Buffers of the ring."""
RING_BYTES = range(8 << 10, (64 << 10) + 1)
"""Of all its buffers: enough to hide the way from the cache, and not the place of the panel."""
MOST_LINES = {1: 8, 2: 8, 4: 3}
"""By warpgroups that multiply, how many block columns each sums at once, at most: each is code of
its own, with addresses that the copying warpgroup needs too."""
MOST_LINES_TOGETHER = {1: 4, 2: 3, 4: 1}
"""The same where a program computes two products of the same columns, of columns that are abreast
together: the copying warpgroup has registers for no more."""
LINES = (1, 2, 3, 4, 5, 6, 8)
"""Block columns that a warpgroup holds the sums of."""
OTHER_REGISTERS = 16
"""Of a thread, beside its sums and addresses."""
COLUMN_REGISTERS = 8
"""For the addresses of each column that is summed at once, which is code of its own."""
CLUSTERS = (1, 2, 4)
"""Programs of other rows that load weights together."""
MOST_BLOCKS = 32
"""Blocks of a piece: a bit each says whether it is needed."""


class Product(NamedTuple):
    """What is known of a product when it is cut.

    Attributes:
      width: features of a block of the result.
      depth: features of a block that are contracted.
      n_lines: block columns of the result.
      n_blocks: how many blocks are contracted.
      n_kept: how many of all blocks are kept.
      dtype: of the operands.
      n_rows: rows of the result.
    """

    width: int
    depth: int
    n_lines: int
    n_blocks: int
    n_kept: int
    dtype: str
    n_rows: int


def product_of(layer: SparseLayer, n_rows: int, *, transposed: bool) -> Product:
    """The forward product of a layer, or with `transposed` that of its input gradient."""
    rows, cols = layer.block
    down, across = layer.grid_shape
    sizes = (cols, rows, down, across) if transposed else (rows, cols, across, down)
    return Product(*sizes, layer.n_kept, layer.dtype, n_rows)


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How a product is cut.

    Attributes:
      n_compute: warpgroups that multiply.
      abreast: block columns that they share out; those of one column have 64 rows each.
      cluster: programs of other rows, each of which loads a part of the weights for all.
      pieces: into how many pieces the panel is cut.
      blocks: blocks of contracted features in a piece.
      lines: block columns that a warpgroup sums at once.
      stages: buffers of the ring, each with a block for every column abreast.
    """

    n_compute: int
    abreast: int
    cluster: int
    pieces: int
    blocks: int
    lines: int
    stages: int

    @property
    def rows(self) -> int:
        """Rows of a program."""
        return self.n_compute // self.abreast * ROWS

    @property
    def group(self) -> int:
        """Block columns that a program sums at once."""
        return self.lines * self.abreast

    def n_tiles(self, product: Product) -> int:
        """Into how many tiles its rows are cut; those of the last cluster may lie behind them."""
        return pl.cdiv(pl.cdiv(product.n_rows, self.rows), self.cluster) * self.cluster

    def n_shares(self, product: Product) -> int:
        """Among how many programs the columns of the same rows are shared out."""
        n_groups = pl.cdiv(product.n_lines, self.group)
        return min(n_groups, max(1, launch.multiprocessors() // self.n_tiles(product)))


def search_space(product: Product, memory_bytes: int, together: int = 1) -> Iterator[Tiles]:
    """Every way to cut a product that fits shared memory and registers.

    Args:
      product: what is cut.
      memory_bytes: of shared memory.
      together: how many such products a program computes of the same columns. Each has a ring, a
        panel of its own if that is in one piece, sums of every column, and memory for its results.
    """
    for n_compute, abreast, cluster in itertools.product(MOST_LINES, MOST_LINES, CLUSTERS):
        if n_compute % abreast == 0 and has_work(product, n_compute // abreast, abreast, cluster):
            yield from _panels(product, n_compute, abreast, cluster, memory_bytes, together)


def has_work(product: Product, tall: int, abreast: int, cluster: int) -> bool:
    """Whether no half of the warpgroups or programs lies behind the rows or columns.

    Args:
      product: what is cut.
      tall: warpgroups above each other.
      abreast: beside each other.
      cluster: programs that load together; each loads whole tiles of a block.
    """
    has_rows = cluster * tall == 1 or product.n_rows > cluster * tall // 2 * ROWS
    has_tiles = min(product.width, product.depth) >= cluster * launch.TILE_ROWS
    return has_rows and has_tiles and abreast <= product.n_lines


def _panels(
    product: Product,
    n_compute: int,
    abreast: int,
    cluster: int,
    memory_bytes: int,
    together: int,
) -> Iterator[Tiles]:
    """The rings and panels that these warpgroups have room for."""
    width, depth, n_blocks = product.width, product.depth, product.n_blocks
    most = (
        _most_lines(n_compute, width)
        if together == 1
        else _most_lines_together(n_compute, abreast, width, cluster)
    )
    if most < 1 < together:
        return
    most = min(most, product.n_lines // abreast)
    slot = together * abreast * launch.panel_bytes((width, depth), product.dtype)
    size = n_compute // abreast * ROWS
    staging = together * launch.panel_bytes((n_compute * ROWS, width), product.dtype)
    for n in [n for n in STAGES if n * slot in RING_BYTES] or [min(STAGES)]:
        left = memory_bytes - n * slot - staging - launch.BARRIERS_BYTES
        if launch.panel_bytes((together, n_blocks, size, depth), product.dtype) <= left:
            yield Tiles(n_compute, abreast, cluster, 1, n_blocks, 1, n)
        fit = left // (2 * launch.panel_bytes((size, depth), product.dtype))
        fit = min(fit, MOST_BLOCKS, n_blocks - 1)
        if fit < 1:
            continue
        pieces = pl.cdiv(n_blocks, fit)
        blocks = pl.cdiv(n_blocks, pieces)
        for lines in [lines for lines in LINES if lines <= most]:
            yield Tiles(n_compute, abreast, cluster, pieces, blocks, lines, n)


def _most_lines(n_compute: int, width: int) -> int:
    """Block columns whose sums a warpgroup has the registers for, one for every two features."""
    most = (launch.registers(n_compute) - OTHER_REGISTERS) // (width // 2 + COLUMN_REGISTERS)
    return min(most, MOST_LINES[n_compute])


def _most_lines_together(n_compute: int, abreast: int, width: int, cluster: int) -> int:
    """The same of two products, whose sums meet: of one column GELU and its slope are there too."""
    others = OTHER_REGISTERS + 3 * width // 4 + (2 * COLUMN_REGISTERS if cluster > 1 else 0)
    left = launch.registers(n_compute) - others
    most = left // (2 * (width // 2 + COLUMN_REGISTERS))
    return min(most, max(1, MOST_LINES_TOGETHER[n_compute] // abreast))


def steps_of_ranks(lists: BlockLists, tiles: Tiles) -> Int[Array, " ranks_and_pieces"]:
    """Of each piece of the panel for each rank of block columns, how many steps their sums take.

    Args:
      lists: the kept blocks of each column.
      tiles: how the product is cut.

    Returns:
      Int32 `[groups * tiles.lines * pieces]`: as many as the column has entries that has the most
      of those abreast.
    """
    n_lines = lists.order.size
    n_blocks = (lists.before.size - 1) // n_lines
    firsts = jnp.minimum(jnp.arange(tiles.pieces + 1) * tiles.blocks, n_blocks)
    starts = lists.before[jnp.arange(n_lines)[:, None] * n_blocks + firsts]
    return longest_abreast(jnp.diff(starts, axis=1), tiles)


def longest_abreast(
    lengths: Int[Array, "lines pieces"], tiles: Tiles
) -> Int[Array, " ranks_and_pieces"]:
    """The largest of the lengths of columns that are abreast; 0 where there is no column."""
    n_lines, n_pieces = lengths.shape
    more = -n_lines % tiles.group
    ranks = jnp.pad(lengths, ((0, more), (0, 0))).reshape(-1, tiles.abreast, n_pieces)
    return ranks.max(axis=1).reshape(-1).astype(jnp.int32)


def needed_blocks(lists: BlockLists, tiles: Tiles) -> Int[Array, " groups_and_pieces"]:
    """Of each piece of the panel for each group of block columns, which blocks they need.

    Args:
      lists: the kept blocks of each column.
      tiles: how the product is cut.

    Returns:
      Int32 `[groups * pieces]`: a bit for every block that an entry of the group names. Of a panel
      in one piece all are loaded, and nothing is said.
    """
    if tiles.pieces == 1:
        return jnp.zeros(1, jnp.int32)
    n_lines = lists.order.size
    n_groups = pl.cdiv(n_lines, tiles.group)
    grid = lists.grid()
    more = n_groups * tiles.group - n_lines, tiles.pieces * tiles.blocks - grid.shape[1]
    grid = jnp.pad(grid, ((0, more[0]), (0, more[1])))
    grid = grid.reshape(n_groups, tiles.group, tiles.pieces, tiles.blocks).any(axis=1)
    bits = jnp.left_shift(1, jnp.arange(tiles.blocks, dtype=jnp.int32))
    return jnp.sum(jnp.where(grid, bits, 0), axis=-1, dtype=jnp.int32).reshape(-1)
