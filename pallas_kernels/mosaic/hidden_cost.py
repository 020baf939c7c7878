"""What hidden units and their gradient cost on paper in one kernel, and one after the other.

By the rates and assumptions of `product_cost` and `mlp_cost`.
"""

import jax.numpy as jnp

from pallas_kernels.device_table import Problem
from pallas_kernels.mosaic import mlp_cost, product_cost, stream_tiles
from pallas_kernels.mosaic.hidden_tiles import (
    APART,
    Hidden,
    HiddenTiles,
    hidden_of,
    search_space,
)
from pallas_kernels.mosaic.mlp_tiles import is_fusable
from pallas_kernels.sparse_layer import SparseLayer

MEMORY_BYTES = 4.3e12
"""To or from device memory a second, on an H200."""


def seconds(hidden: Hidden, tiles: HiddenTiles) -> float:
    """The time of one kernel, if blocks were kept at random; results of both products go out."""
    n_programs = tiles.n_tiles(hidden.units) * tiles.n_shares(hidden.units)
    loaded = sum(product_cost.loaded_bytes(product, tiles) for product in hidden)
    steps = sum(product_cost.program_seconds(product, tiles) for product in hidden)
    multiplied = product_cost.in_waves(n_programs, tiles.cluster, loaded, steps)
    n_units, bytes_of_units = _units(hidden)
    own_units = -(-n_units // n_programs)
    gelu = mlp_cost.gelu_seconds(n_programs, tiles.cluster, own_units, tiles.n_compute)
    return multiplied + gelu + 2 * bytes_of_units / MEMORY_BYTES


def apart_seconds(hidden: Hidden) -> float:
    """The time of one product after the other: units go out, in again and out with a gradient."""
    cuts = [stream_tiles.tiles_of(product) for product in hidden]
    products = sum(stream_tiles.seconds(*each) for each in zip(hidden, cuts, strict=True))
    n_units, bytes_of_units = _units(hidden)
    places = product_cost.places(1)
    gelu = mlp_cost.gelu_seconds(places, 1, -(-n_units // places))
    return products + max(gelu, 4 * bytes_of_units / MEMORY_BYTES)


def tiles_of(layers: tuple[SparseLayer, SparseLayer], problem: Problem) -> HiddenTiles | None:
    """How two layers are cut, as was measured to be best or else costs least on paper.

    Args:
      layers: both.
      problem: what the kernel is asked to do.

    Returns:
      None where one product after the other is better, or all there is.
    """
    if not is_fusable(layers):
        return None
    hidden = hidden_of(layers, problem.n_rows)
    return mlp_cost.chosen(by_cost(hidden), problem, hidden, APART)


def by_cost(hidden: Hidden) -> list[HiddenTiles]:
    """Every way to cut both that fits, and one after the other, the shortest time first."""

    def time(tiles: HiddenTiles) -> float:
        return apart_seconds(hidden) if tiles == APART else seconds(hidden, tiles)

    return mlp_cost.ranked([*search_space(hidden), APART], time)


def _units(hidden: Hidden) -> tuple[int, int]:
    """How many hidden units there are of all rows, and their bytes."""
    product = hidden.units
    n_units = product.n_rows * product.n_lines * product.width
    return n_units, n_units * jnp.dtype(product.dtype).itemsize
