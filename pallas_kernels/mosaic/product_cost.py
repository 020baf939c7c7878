"""What products of panels cost on paper, which kernels for two layers are made of.

Rates and times of a step are those of an H200: a step waits for memory where nothing hides that.
"""

import math

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.product_tiles import ROWS, Product, Tiles

CACHE_BYTES = 5.5e12
"""From the second-level cache to shared memory, a second."""
FLOPS = {2: 7.8e14, 4: 3.9e14}
"""Of tensor cores a second, by the bytes of a number."""
COPY_SECONDS = 1e-6
"""From the start of a copy to its end."""
STEP_SECONDS = 3e-7
"""Of a step that has nothing to wait for: barriers, ids, the start of a product."""
ISSUE_SECONDS = 1.5e-7
"""Of the start of one copy by the warpgroup that starts them all."""
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


def program_seconds(product: Product, tiles: Tiles) -> float:
    """The time of the steps of one program, whatever it loads.

    Args:
      product: what is computed.
      tiles: how it is cut.
    """
    n_blocks = product.n_blocks if tiles.pieces == 1 else tiles.blocks
    step, longest = steps_of(product, tiles, n_blocks)
    n_groups = pl.cdiv(product.n_lines, tiles.group)
    n_turns = pl.cdiv(n_groups, tiles.n_shares(product))
    return n_turns * tiles.lines * tiles.pieces * longest * step


def steps_of(product: Product, tiles: Tiles, n_blocks: int) -> tuple[float, float]:
    """The time of a step, and how many the longest of the columns abreast takes.

    Args:
      product: whose columns they are.
      tiles: how it is cut.
      n_blocks: blocks of the panel or piece that they are summed over.
    """
    density = _density(product)
    entries = n_blocks * density
    spread = math.sqrt(entries * (1 - density))
    longest = min(float(n_blocks), entries + _LONGEST[tiles.abreast] * spread)
    flops = 2 * tiles.n_compute * ROWS * product.width * product.depth * entries / longest
    flops *= max(1, (ROWS + product.width) / (2 * product.width))
    multiplied = flops * launch.H200_MULTIPROCESSORS / FLOPS[jnp.dtype(product.dtype).itemsize]
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
    n_places = places(cluster)
    waves = pl.cdiv(n_programs, n_places)
    return max(waves * n_places / n_programs * loaded / CACHE_BYTES, waves * program_seconds)


def places(cluster: int) -> int:
    """How many programs run at once, in clusters of so many: one on each multiprocessor.

    A cluster lies in one group of these, and not every group is a multiple of four: 124 of an
    H200's 132 is assumed.
    """
    n = launch.multiprocessors()
    return n * 31 // 33 // cluster * cluster if cluster > 2 else n // cluster * cluster


def _density(product: Product) -> float:
    return product.n_kept / (product.n_lines * product.n_blocks)
