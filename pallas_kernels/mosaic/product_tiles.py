"""How products with a block-sparse operand are cut into programs, panels and rings on Hopper."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Int

from pallas_kernels.layout import BlockLists, insertion_points, kept_grid
from pallas_kernels.mosaic import launch
from pallas_kernels.sparse_layer import SparseLayer

ROWS = 64
"""Rows of a warpgroup's products, which the hardware sets."""
PROGRAMS = 132
"""How many programs there are at least, if there is work: multiprocessors of an H200."""
STAGES = (16, 8, 4, 2)
"""Buffers of the ring."""
RING_BYTES = range(8 << 10, (64 << 10) + 1)
"""Of all its buffers: enough to hide the way from the cache, and not the place of the panel."""
COLUMNS = {1: 256, 2: 256, 4: 128}
"""By warpgroups that multiply, features whose sums are held at once: of the registers, half."""
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
    (n_in, n_out), (rows, cols) = layer.kernel_shape, layer.block
    down, across = n_in // cols, n_out // rows
    sizes = (cols, rows, down, across) if transposed else (rows, cols, across, down)
    return Product(*sizes, layer.n_kept, layer.dtype, n_rows)


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How a product is cut.

    Attributes:
      n_compute: warpgroups that multiply, of 64 rows each.
      pieces: into how many pieces the panel is cut.
      blocks: blocks of contracted features in a piece.
      lines: block columns that are summed at once.
      stages: buffers of the ring.
    """

    n_compute: int
    pieces: int
    blocks: int
    lines: int
    stages: int

    def n_shares(self, product: Product) -> int:
        """Among how many programs the columns of the same rows are shared out."""
        n_tiles = pl.cdiv(product.n_rows, self.n_compute * ROWS)
        return min(pl.cdiv(product.n_lines, self.lines), max(1, PROGRAMS // n_tiles))


def search_space(product: Product, memory_bytes: int) -> Iterator[Tiles]:
    """Every way to cut a product that fits shared memory and registers.

    Args:
      product: what is cut.
      memory_bytes: of shared memory.
    """
    width, depth, n_blocks = product.width, product.depth, product.n_blocks
    block = launch.panel_bytes((width, depth), product.dtype)
    stages = [n for n in STAGES if n * block in RING_BYTES] or [min(STAGES)]
    for n_compute, columns in COLUMNS.items():
        if n_compute > 1 and product.n_rows <= n_compute // 2 * ROWS:
            continue
        size = n_compute * ROWS
        staging = launch.panel_bytes((size, width), product.dtype)
        for n in stages:
            left = memory_bytes - n * block - staging - launch.BARRIERS_BYTES
            if launch.panel_bytes((n_blocks, size, depth), product.dtype) <= left:
                yield Tiles(n_compute, 1, n_blocks, 1, n)
            fit = left // (2 * launch.panel_bytes((size, depth), product.dtype))
            fit = min(fit, MOST_BLOCKS, n_blocks - 1)
            if fit < 1:
                continue
            pieces = pl.cdiv(n_blocks, fit)
            for lines in (1, 2, 4, 8, 16):
                if lines * width <= columns:
                    yield Tiles(n_compute, pieces, pl.cdiv(n_blocks, pieces), lines, n)


def loaded_bytes(product: Product, tiles: Tiles) -> float:
    """What all programs load into shared memory, if blocks were kept at random.

    Kept weights once for each tile of rows; a whole panel once for each program; of a panel in
    pieces, for each group of columns, the blocks that any of them needs.
    """
    n_tiles = pl.cdiv(product.n_rows, tiles.n_compute * ROWS)
    panel_block = tiles.n_compute * ROWS * product.depth
    weights = product.n_kept * product.width * product.depth
    if tiles.pieces == 1:
        panels = tiles.n_shares(product) * product.n_blocks * panel_block
    else:
        density = product.n_kept / (product.n_lines * product.n_blocks)
        needed = 1 - (1 - density) ** tiles.lines
        panels = pl.cdiv(product.n_lines, tiles.lines) * needed * product.n_blocks * panel_block
    return float(n_tiles * (weights + panels) * jnp.dtype(product.dtype).itemsize)


def tiles_of(product: Product, memory_bytes: int = launch.SHARED_MEMORY_BYTES) -> Tiles:
    """The way to cut a product that loads the least, the one of the longest ring.

    What bounds these products is the way from the second-level cache to shared memory: at 5.5 TB/s
    and 780 TFLOP/s (H200) it takes 140 FLOP a byte to be as fast as tensor cores. Not measured yet.

    Args:
      product: what is cut.
      memory_bytes: of shared memory.

    Raises:
      ValueError: no way fits.
    """
    ways = search_space(product, memory_bytes)
    best = min(ways, key=lambda way: (loaded_bytes(product, way), -way.stages), default=None)
    if best is None:
        raise ValueError(
            f"blocks {product.width}x{product.depth} of {product.dtype} do not fit {memory_bytes} "
            "bytes"
        )
    return best


class Pieces(NamedTuple):
    """The entries of the lists of kept blocks, by pieces of the panel.

    Attributes:
      start: int32 `[lines * (pieces + 1)]`, flattened: of each piece of each line, where its
        entries begin, and where the last one's end.
      needed: int32 `[groups * pieces]`, flattened: of each piece for each group of lines, a bit for
        every block that an entry of the group names.
    """

    start: Int[Array, " starts"]
    needed: Int[Array, " groups_and_pieces"]


def cut_into_pieces(lists: BlockLists, tiles: Tiles, n_blocks: int) -> Pieces:
    """Where entries lie in the panel.

    Args:
      lists: the kept blocks of each line.
      tiles: how the product is cut.
      n_blocks: how many blocks are contracted.
    """
    n_lines = lists.order.size
    line = insertion_points(lists.start, jnp.arange(lists.across.size), side="right") - 1
    place = line * n_blocks + lists.across
    firsts = jnp.minimum(jnp.arange(tiles.pieces + 1) * tiles.blocks, n_blocks)
    wanted = jnp.arange(n_lines)[:, None] * n_blocks + firsts
    starts = insertion_points(place, wanted.reshape(-1))
    if tiles.pieces == 1:
        return Pieces(starts, jnp.zeros(1, jnp.int32))
    grid = kept_grid(place, (n_lines, n_blocks))[lists.order]
    n_groups = pl.cdiv(n_lines, tiles.lines)
    padding = (n_groups * tiles.lines - n_lines, tiles.pieces * tiles.blocks - n_blocks)
    grid = jnp.pad(grid, ((0, padding[0]), (0, padding[1])))
    grid = grid.reshape(n_groups, tiles.lines, tiles.pieces, tiles.blocks).any(axis=1)
    bits = jnp.left_shift(1, jnp.arange(tiles.blocks, dtype=jnp.int32))
    return Pieces(starts, jnp.sum(jnp.where(grid, bits, 0), axis=-1, dtype=jnp.int32).reshape(-1))
