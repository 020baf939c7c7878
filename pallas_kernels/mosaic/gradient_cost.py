"""What a way to cut the kernel's gradient costs on paper, and which one costs the least.

As `product_cost`: rates are those of an H200, the times of a step assumed, and nothing of it was
measured yet.
"""

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.mosaic.gradient_tiles import (
    DEPTH_BYTES,
    GradientTiles,
    n_steps,
    search_space,
    shape_of,
)
from pallas_kernels.mosaic.groups import n_groups_of
from pallas_kernels.mosaic.product_cost import (
    COPY_SECONDS,
    FLOPS,
    ISSUE_SECONDS,
    STEP_SECONDS,
    in_waves,
)
from pallas_kernels.mosaic.product_tiles import PROGRAMS
from pallas_kernels.sparse_layer import SparseLayer

MEMORY_BYTES = 4e12
"""To or from global memory, a second."""
_SUM_BYTES = 4


def n_filled(layer: SparseLayer, n_together: int) -> float:
    """Groups that hold any block, if blocks were kept at random: a column's last is half empty."""
    full = layer.n_kept / n_together
    if n_together == 1:
        return full
    n_columns = layer.kernel_shape[1] // layer.block[0]
    return full + min(n_columns, layer.n_kept) * (n_together - 1) / (2 * n_together)


def loaded_bytes(layer: SparseLayer, n_rows: int, tiles: GradientTiles) -> float:
    """What all programs load: one operand for each kept block, the other for each group of them."""
    height, width, _ = shape_of(layer.block)
    features = layer.n_kept * height + n_filled(layer, tiles.n_together) * width
    return features * n_rows * jnp.dtype(layer.dtype).itemsize


def summed_bytes(layer: SparseLayer, n_rows: int, tiles: GradientTiles) -> float:
    """What the sums of all shares of the rows take, which are written, read again and added up."""
    height, width, _ = shape_of(layer.block)
    n_shares, _ = _shares(layer, n_rows, tiles)
    sums = tiles.n_together * height * width * _SUM_BYTES
    written, read = n_filled(layer, tiles.n_together), _n_groups(layer, tiles)
    return n_shares * (written + read) * sums


def seconds(layer: SparseLayer, n_rows: int, tiles: GradientTiles) -> float:
    """The time of a gradient: of its loads or its steps, in waves, and of the sums of the shares.

    A program has the registers of a multiprocessor, so each runs one at a time. A step takes as
    long as its products, as the start of its copies, or as those that the ring cannot hide.
    """
    (height, width, _), size = shape_of(layer.block), jnp.dtype(layer.dtype).itemsize
    n_shares, per_share = _shares(layer, n_rows, tiles)
    filled = n_filled(layer, tiles.n_together)
    flops = 2 * layer.n_kept / filled * height * width * DEPTH_BYTES / size
    step = max(
        STEP_SECONDS,
        ISSUE_SECONDS * (tiles.n_together + 1),
        COPY_SECONDS / (tiles.stages - 1),
        flops * PROGRAMS / FLOPS[size],
    )
    n_programs = max(1, round(n_shares * filled))
    multiplied = in_waves(n_programs, 1, loaded_bytes(layer, n_rows, tiles), per_share * step)
    return multiplied + summed_bytes(layer, n_rows, tiles) / MEMORY_BYTES


def by_cost(layer: SparseLayer, n_rows: int) -> list[GradientTiles]:
    """Every way to cut the gradient of a layer that fits, the shortest time first.

    Of equal ones what loads less comes first, then fewer programs, then the longer ring.
    """

    def cost(tiles: GradientTiles) -> tuple[float, float, int, int]:
        loaded = loaded_bytes(layer, n_rows, tiles)
        return seconds(layer, n_rows, tiles), loaded, tiles.programs, -tiles.stages

    return sorted(search_space(layer), key=cost)


def gradient_tiles_of(layer: SparseLayer, n_rows: int) -> GradientTiles:
    """The way to cut the gradient of a layer of so many rows that costs the least on paper."""
    return by_cost(layer, n_rows)[0]


def _n_groups(layer: SparseLayer, tiles: GradientTiles) -> int:
    n_columns = layer.kernel_shape[1] // layer.block[0]
    return n_groups_of(layer.n_kept, n_columns, tiles.n_together)


def _shares(layer: SparseLayer, n_rows: int, tiles: GradientTiles) -> tuple[int, int]:
    """How many shares of the rows there are, and the most steps that one has."""
    steps = n_steps(n_rows, layer.dtype)
    per_share = tiles.per_share(steps, _n_groups(layer, tiles))
    return pl.cdiv(steps, per_share), per_share
