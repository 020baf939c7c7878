"""What a way to cut two fused layers costs on paper, and whether it beats one after the other.

By the rates and assumptions of `product_cost`, of which nothing was measured yet. GELU costs either
way the same, and is left out.
"""

import jax.numpy as jnp

from pallas_kernels.mosaic import product_cost
from pallas_kernels.mosaic.mlp_tiles import APART, MlpTiles, Pair, search_space


def seconds(pair: Pair, tiles: MlpTiles) -> float:
    """The time of a fused pair, if blocks were kept at random: of its loads, or of its steps."""
    first, second = pair
    n_turns = tiles.pieces * tiles.turns
    step1, longest1 = product_cost.steps_of(first, tiles.first, first.n_blocks, is_sorted=False)
    step2, longest2 = product_cost.steps_of(second, tiles.second, tiles.blocks, is_sorted=False)
    steps = n_turns * longest1 * step1 + tiles.pieces * tiles.lines * longest2 * step2
    # The warpgroups meet once a piece.
    steps += tiles.pieces * product_cost.STEP_SECONDS
    n_programs, itemsize = tiles.first.n_tiles(first), jnp.dtype(first.dtype).itemsize
    kept = sum(product.n_kept * product.width * product.depth for product in pair)
    panel = tiles.first.rows * first.n_blocks * first.depth
    loaded = n_programs * (kept / tiles.cluster + panel) * itemsize
    return product_cost.in_waves(n_programs, tiles.cluster, loaded, steps)


def apart_seconds(pair: Pair) -> float:
    """The time of one product after the other, the first of which writes the hidden units."""
    first, second = pair
    hidden = first.n_rows * first.n_lines * first.width * jnp.dtype(first.dtype).itemsize
    products = (product_cost.seconds(a, product_cost.tiles_of(a)) for a in (first, second))
    return sum(products) + hidden / product_cost.CACHE_BYTES


def by_cost(pair: Pair) -> list[MlpTiles]:
    """Every way to cut a pair that fits, and one product after the other, the shortest time first.

    Of equal ones what has more warpgroups comes first, then the longer ring.
    """

    def cost(tiles: MlpTiles) -> tuple[float, int, int]:
        time = apart_seconds(pair) if tiles == APART else seconds(pair, tiles)
        return time, -tiles.n_compute, -tiles.stages

    return sorted([*search_space(pair), APART], key=cost)
