"""What a way to cut two fused layers costs on paper, and whether it beats one after the other.

By the rates and assumptions of `product_cost` and the time of GELU: a fused program computes it of
all hidden units of its rows, which more programs share out otherwise if there are few rows.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.device_table import Problem
from pallas_kernels.mosaic import product_cost, stream_tiles
from pallas_kernels.mosaic.mlp_tiles import (
    APART,
    MlpTiles,
    Pair,
    is_fusable,
    pair_of,
    search_space,
)
from pallas_kernels.sparse_layer import SparseLayer
from pallas_kernels.tuning import configure

GELU_SECONDS = 27 / (128 * 1.7e9)
"""Of a number on a multiprocessor: 27 operations, 128 at once, at 1.7 GHz; assumed."""


def seconds(pair: Pair, tiles: MlpTiles) -> float:
    """The time of a fused pair, if blocks were kept at random: of its loads, or of its steps."""
    first, second = pair
    n_turns = tiles.pieces * tiles.turns
    step1, longest1 = product_cost.steps_of(first, tiles.first, first.n_blocks)
    step2, longest2 = product_cost.steps_of(second, tiles.second, tiles.blocks)
    steps = n_turns * longest1 * step1 + tiles.pieces * tiles.lines * longest2 * step2
    # The warpgroups meet once a piece.
    steps += tiles.pieces * product_cost.STEP_SECONDS
    n_programs, itemsize = tiles.first.n_tiles(first), jnp.dtype(first.dtype).itemsize
    kept = sum(product.n_kept * product.width * product.depth for product in pair)
    panel = tiles.first.rows * first.n_blocks * first.depth
    loaded = n_programs * (kept / tiles.cluster + panel) * itemsize
    multiplied = product_cost.in_waves(n_programs, tiles.cluster, loaded, steps)
    units = tiles.first.rows * first.n_lines * first.width
    return multiplied + gelu_seconds(n_programs, tiles.cluster, units, tiles.n_compute)


def gelu_seconds(n_programs: int, cluster: int, units: int, n_compute: int = 4) -> float:
    """The time of GELU, of so many numbers in each program.

    A warpgroup that multiplies alone does not keep a multiprocessor busy, each of whose four parts
    has one warp of it then: half of the rate is assumed.
    """
    rate = 0.5 if n_compute == 1 else 1.0
    return pl.cdiv(n_programs, product_cost.places(cluster)) * units * GELU_SECONDS / rate


def apart_seconds(pair: Pair) -> float:
    """The time of one product after the other, the first of which writes the hidden units."""
    hidden = pair.first.n_rows * pair.first.n_lines * pair.first.width
    written = hidden * jnp.dtype(pair.first.dtype).itemsize / product_cost.CACHE_BYTES
    cuts = [stream_tiles.tiles_of(product) for product in pair]
    products = (stream_tiles.seconds(*each) for each in zip(pair, cuts, strict=True))
    n_programs = cuts[0].n_programs(pair.first)
    return sum(products) + written + gelu_seconds(n_programs, 1, -(-hidden // n_programs))


def tiles_of(layers: tuple[SparseLayer, SparseLayer], problem: Problem) -> MlpTiles | None:
    """How two layers are cut, as was measured to be best or else costs least on paper.

    Args:
      layers: both.
      problem: what the kernel is asked to do.

    Returns:
      None where one product after the other is better, or all there is.
    """
    if not is_fusable(layers):
        return None
    pair = pair_of(layers, problem.n_rows)
    return chosen(by_cost(pair), problem, pair, APART)


def ranked[T](cuts: list[T], time: Callable[[T], float]) -> list[T]:
    """Cuts by their time; of equal ones what has more warpgroups comes first, then longer rings."""

    def cost(tiles: Any) -> tuple[float, int, int]:
        return time(tiles), -tiles.n_compute, -tiles.stages

    return sorted(cuts, key=cost)


def chosen(cuts: list[Any], problem: Problem, pair: Any, apart: Any) -> Any:
    """The cut that was measured to be best, if it is one of a pair, or else the first on paper.

    Args:
      cuts: every one, ranked.
      problem: what was measured.
      pair: what is cut.
      apart: stands for one product after the other.

    Returns:
      None for that.
    """
    tiles = configure(problem, cuts[0])
    if tiles != apart and not tiles.covers(pair):
        tiles = cuts[0]
    return None if tiles == apart else tiles


def by_cost(pair: Pair) -> list[MlpTiles]:
    """Every way to cut a pair that fits, and one product after the other, by their time."""

    def time(tiles: MlpTiles) -> float:
        return apart_seconds(pair) if tiles == APART else seconds(pair, tiles)

    return ranked([*search_space(pair), APART], time)
