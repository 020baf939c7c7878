"""How products with a block-sparse operand are cut into tiles and steps on Hopper."""

import dataclasses

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.product_tiles import ROWS, Product

STEP_BYTES = 128
"""Of contracted features in a step: as many as lie side by side in shared memory."""
STAGES = (8, 7, 6, 5, 4, 3, 2)
"""Buffers of the ring: as many as fit, since those of shorter ones came later wherever an H200
waited for them."""
WARPGROUPS = (
    *((4, 1, 1), (2, 1, 2), (4, 2, 2), (2, 2, 2), (4, 2, 1)),
    *((2, 1, 1), (2, 2, 1), (1, 1, 2), (1, 1, 1)),
)
"""Those that multiply, how many teams they are, and how many times 64 rows each has."""
OTHER_REGISTERS = 32
"""Of a thread, beside its sums and the bias."""
CACHE_BYTES = 8.5e12
"""From the second-level cache to shared memory, a second, as measured on an H200."""
FLOPS = {2: 7.8e14, 4: 3.9e14}
"""Of tensor cores a second, by the bytes of a number."""
WRITE_SECONDS = 0.8e-10
"""Of a number of the result, from the sums of two warpgroups to global memory."""


@dataclasses.dataclass(frozen=True)
class StreamTiles:
    """How a product is cut.

    Attributes:
      n_compute: warpgroups that multiply.
      teams: how many teams they are, which have tiles in turn.
      tall: how many times 64 rows each of them has.
      stages: buffers of the ring.
    """

    n_compute: int
    teams: int
    tall: int
    stages: int

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.n_compute // self.teams * self.tall * ROWS

    @property
    def n_staged(self) -> int:
        """How many times 64 rows each warpgroup may have on their way out at the same time."""
        return self.tall if self.teams == 1 else 1

    def n_row_tiles(self, n_rows: int) -> int:
        """Into how many tiles rows are cut."""
        return pl.cdiv(n_rows, self.rows)

    def n_programs(self, product: Product) -> int:
        """One for each multiprocessor, or for each tile if there are fewer."""
        n_tiles = self.n_row_tiles(product.n_rows) * product.n_lines
        return min(launch.multiprocessors(), n_tiles)


def step_depth(depth: int, dtype: str) -> int:
    """Contracted features of a step: a block of more is multiplied in several."""
    return min(depth, STEP_BYTES // jnp.dtype(dtype).itemsize)


def search_space(product: Product, memory_bytes: int) -> list[StreamTiles]:
    """Every way to cut a product that fits shared memory and registers."""
    found: dict[tuple[int, int, int], StreamTiles] = {}
    for warpgroups in WARPGROUPS:
        for tiles in (StreamTiles(*warpgroups, stages) for stages in STAGES):
            if _fits(product, tiles, memory_bytes):
                found.setdefault(warpgroups, tiles)
    return list(found.values())


def n_staged(tiles: StreamTiles, *, through_gelu: bool) -> int:
    """How many times 64 rows each warpgroup stages: some on their way out, or all that come in."""
    return tiles.tall if through_gelu else tiles.n_staged


def with_hidden_units(
    product: Product, tiles: StreamTiles, memory_bytes: int = launch.SHARED_MEMORY_BYTES
) -> StreamTiles:
    """The same with room for hidden units, which come in tile by tile, and for GELU's slope.

    Two warpgroups have the registers for these, of blocks of 128 features one tile of 64 rows each.
    """
    n_compute = min(tiles.n_compute, 2)
    most = 2 if n_compute == 2 and product.width <= ROWS else 1
    tall = min(most, tiles.n_compute // n_compute * tiles.tall)
    tiles = dataclasses.replace(tiles, n_compute=n_compute, tall=tall)
    while _bytes(product, tiles, through_gelu=True) > memory_bytes and tiles.stages > 2:
        tiles = dataclasses.replace(tiles, stages=tiles.stages - 1)
    return tiles


def _fits(product: Product, tiles: StreamTiles, memory_bytes: int) -> bool:
    width = product.width
    registers = tiles.tall * width // 2 + width // 8 + OTHER_REGISTERS
    if registers > launch.registers(tiles.n_compute):
        return False
    has_rows = tiles.rows == ROWS or product.n_rows > tiles.rows // 2
    return has_rows and _bytes(product, tiles) <= memory_bytes


def _bytes(product: Product, tiles: StreamTiles, *, through_gelu: bool = False) -> int:
    """Of shared memory."""
    depth, width = step_depth(product.depth, product.dtype), product.width
    left = launch.panel_bytes((tiles.rows, depth), product.dtype)
    right = launch.panel_bytes((width, depth), product.dtype)
    n_rows = tiles.n_compute * n_staged(tiles, through_gelu=through_gelu) * ROWS
    staging = launch.panel_bytes((n_rows, width), product.dtype)
    return tiles.stages * (left + right) + staging + launch.BARRIERS_BYTES


def seconds(product: Product, tiles: StreamTiles) -> float:
    """The time of a product on paper: of its loads, of its arithmetic, or of its tiles."""
    size = jnp.dtype(product.dtype).itemsize
    n_row_tiles = tiles.n_row_tiles(product.n_rows)
    steps = product.n_kept * n_row_tiles
    loaded = steps * product.depth * (tiles.rows + product.width) * size / CACHE_BYTES
    n_tiles = n_row_tiles * product.n_lines
    places = tiles.n_programs(product)
    # The last tiles of each may leave most of the device idle.
    waves = pl.cdiv(n_tiles, places)
    loaded *= waves * places / n_tiles
    flops = 2 * steps * tiles.rows * product.width * product.depth
    # Tensor cores read both operands from shared memory: of a narrow block mostly x.
    flops *= max(1.0, (ROWS + product.width) / (2 * product.width))
    # Rates are of all multiprocessors of an H200.
    slower = launch.H200_MULTIPROCESSORS / places
    multiplied = waves * places / n_tiles * flops / FLOPS[size] * slower
    written = waves * tiles.rows * product.width * WRITE_SECONDS * min(2, 2 / tiles.n_compute)
    loaded *= slower
    if tiles.teams == 1:
        return max(loaded, multiplied + written)
    return max(loaded, multiplied, (multiplied + written * tiles.n_compute / 2) / 2)


def by_cost(product: Product, memory_bytes: int = launch.SHARED_MEMORY_BYTES) -> list[StreamTiles]:
    """Every way to cut a product that fits, the shortest time on paper first.

    Args:
      product: what is cut.
      memory_bytes: of shared memory.
    """
    return sorted(search_space(product, memory_bytes), key=lambda tiles: seconds(product, tiles))


def tiles_of(product: Product, memory_bytes: int = launch.SHARED_MEMORY_BYTES) -> StreamTiles:
    """The way to cut a product that takes the shortest time on paper.

    Args:
      product: what is cut.
      memory_bytes: of shared memory.

    Raises:
      ValueError: no way fits.
    """
    ways = by_cost(product, memory_bytes)
    if not ways:
        raise ValueError(
            f"blocks {product.width}x{product.depth} of {product.dtype} do not fit {memory_bytes} "
            "bytes"
        )
    return ways[0]
