"""What a way to cut a product costs on paper, and which one costs the least.

Rates are those of an H200, the times of a step assumed. Nothing of it was measured yet: it chooses
where no table does, and says to the tuner where to begin.
"""

import math

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.product_tiles import PROGRAMS, ROWS, Product, Tiles, search_space

CACHE_BYTES = 5.5e12
"""From the second-level cache to shared memory, a second."""
FLOPS = {2: 7.8e14, 4: 3.9e14}
"""Of tensor cores a second, by the bytes of a number."""
COPY_SECONDS = 4e-7
"""From the start of a copy to its end, assumed."""
STEP_SECONDS = 6e-8
"""Of a step that has nothing to wait for: barriers, ids, the start of a product; assumed."""
ISSUE_SECONDS = 4e-8
"""Of the start of one copy by the warpgroup that starts them all, assumed."""
PLACES = {1: 132, 2: 132, 4: 124}
"""Programs that run at once, by the size of their clusters: one on each multiprocessor of an H200.
A cluster lies in one group of these, and not every group is a multiple of four; assumed."""
_LONGEST = {1: 0.0, 2: 0.56, 4: 1.03}
"""The largest of so many normal numbers in the mean, in standard deviations."""


def loaded_bytes(product: Product, tiles: Tiles) -> float:
    """What all programs load into shared memory, if blocks were kept at random.

    Kept weights once for each cluster of tiles of rows; a whole panel once for each program; of a
    panel in pieces, for each group of columns, the blocks that any of them needs.
    """
    n_tiles = tiles.n_tiles(product)
    panel_block = tiles.rows * product.depth
    weights = product.n_kept * product.width * product.depth / tiles.cluster
    if tiles.pieces == 1:
        panels = tiles.n_shares(product) * product.n_blocks * panel_block
    else:
        needed = 1 - (1 - _density(product)) ** tiles.group
        panels = pl.cdiv(product.n_lines, tiles.group) * needed * product.n_blocks * panel_block
    return float(n_tiles * (weights + panels) * jnp.dtype(product.dtype).itemsize)


def seconds(product: Product, tiles: Tiles) -> float:
    """The time of a product, if blocks were kept at random: of its loads, or of its steps.

    Programs run in waves, the last of which may leave most of the device idle. A step takes as long
    as its products, as the start of its copies, or as those that the ring cannot hide. Tensor cores
    read both operands from shared memory, 128 bytes while they compute 4096 bfloat16 operations:
    for narrow blocks reading takes longer. Columns abreast wait for the longest of them; whole
    columns are sorted by their length, what lies in a piece is not.
    """
    n_programs = tiles.n_tiles(product) * tiles.n_shares(product)
    steps = program_seconds(product, tiles, is_sorted=tiles.pieces == 1)
    return in_waves(n_programs, tiles.cluster, loaded_bytes(product, tiles), steps)


def program_seconds(product: Product, tiles: Tiles, *, is_sorted: bool) -> float:
    """The time of the steps of one program, whatever it loads.

    Args:
      product: what is computed.
      tiles: how it is cut.
      is_sorted: whether columns abreast are of about one length.
    """
    n_blocks = product.n_blocks if tiles.pieces == 1 else tiles.blocks
    step, longest = steps_of(product, tiles, n_blocks, is_sorted=is_sorted)
    n_groups = pl.cdiv(product.n_lines, tiles.group)
    n_turns = pl.cdiv(n_groups, tiles.n_shares(product))
    return n_turns * tiles.lines * tiles.pieces * longest * step


def steps_of(
    product: Product, tiles: Tiles, n_blocks: int, *, is_sorted: bool
) -> tuple[float, float]:
    """The time of a step, and how many the longest of the columns abreast takes.

    Args:
      product: whose columns they are.
      tiles: how it is cut.
      n_blocks: blocks of the panel or piece that they are summed over.
      is_sorted: whether columns abreast are of about one length.
    """
    density = _density(product)
    entries = n_blocks * density
    spread = 0.0 if is_sorted else math.sqrt(entries * (1 - density))
    longest = min(float(n_blocks), entries + _LONGEST[tiles.abreast] * spread)
    flops = 2 * tiles.n_compute * ROWS * product.width * product.depth * entries / longest
    flops *= max(1, (ROWS + product.width) / (2 * product.width))
    multiplied = flops * PROGRAMS / FLOPS[jnp.dtype(product.dtype).itemsize]
    issued = ISSUE_SECONDS * tiles.abreast
    return max(STEP_SECONDS, issued, COPY_SECONDS / (tiles.stages - 1), multiplied), longest


def in_waves(n_programs: int, cluster: int, loaded: float, program_seconds: float) -> float:
    """The time of programs of which so many run at once: of all loads, or of the steps of each.

    Args:
      n_programs: how many.
      cluster: of how many that load weights together.
      loaded: bytes that all of them load.
      program_seconds: steps of one.
    """
    places = PLACES[cluster]
    waves = pl.cdiv(n_programs, places)
    return max(waves * places / n_programs * loaded / CACHE_BYTES, waves * program_seconds)


def by_cost(product: Product, memory_bytes: int = launch.SHARED_MEMORY_BYTES) -> list[Tiles]:
    """Every way to cut a product that fits, the shortest time first.

    Of equal ones what loads less comes first, then more warpgroups, then the longer ring.

    Args:
      product: what is cut.
      memory_bytes: of shared memory.
    """

    def cost(tiles: Tiles) -> tuple[float, float, int, int]:
        loaded = loaded_bytes(product, tiles)
        return seconds(product, tiles), loaded, -tiles.n_compute, -tiles.stages

    return sorted(search_space(product, memory_bytes), key=cost)


def tiles_of(product: Product, memory_bytes: int = launch.SHARED_MEMORY_BYTES) -> Tiles:
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


def _density(product: Product) -> float:
    return product.n_kept / (product.n_lines * product.n_blocks)
