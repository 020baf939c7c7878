"""What a way to cut the kernel's gradient costs on paper, and which one costs the least.

Rates are those of an H200. At 1024x4096 and 4096x16384 they put 45 of the 66 ways that were timed
(`experiments/results/gpu_nvidia_h200*/candidates.jsonl`) within a third of their time, all within a
factor of 2: blocks of 32 most often too slow, of 128 too fast.
"""

import math

import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_kernels.mosaic.balanced_shares import plan_of
from pallas_kernels.mosaic.gradient_tiles import (
    DENSE,
    DEPTH_BYTES,
    ROWS,
    GradientTiles,
    Shape,
    balanced_space,
    n_steps,
    search_space,
    shape_of,
)
from pallas_kernels.mosaic.groups import n_groups_of
from pallas_kernels.mosaic.launch import H200_MULTIPROCESSORS
from pallas_kernels.mosaic.product_cost import FLOPS, in_waves
from pallas_kernels.sparse_layer import SparseLayer

NARROW = 1.5
"""How many times as long as others loads of few features take, as measured."""
DENSE_SHARE = 0.85
"""Of what tensor cores can do, in XLA's dense products; measured at 1024x4096."""
COPY_SECONDS = 1.5e-6
"""From the start of the copies of a step to their end, while all programs load."""
STEP_SECONDS = 6e-8
"""Of a step that has nothing to wait for: barriers, the start of a product; assumed."""
ISSUE_SECONDS = 4e-8
"""Of the start of one copy by the warpgroup that starts them all, assumed."""
MEMORY_BYTES = 4e12
"""To or from global memory, a second."""
BALANCED_FOR = 1.25
"""How many times as long a balanced way may take on paper to be taken; measured at 8192 rows."""
_SUM_BYTES = 4


def n_filled(n_kept: int, n_lines: int, n_together: int) -> float:
    """Groups that hold any block, if blocks were kept at random: a line's last is half empty."""
    full = n_kept / n_together
    if n_together == 1:
        return full
    return full + min(n_lines, n_kept) * (n_together - 1) / (2 * n_together)


def loaded_bytes(layer: SparseLayer, n_rows: int, tiles: GradientTiles) -> float:
    """What all programs load: one operand for each kept block, the other for each group of them."""
    shape = _shape(layer, tiles)
    features = layer.n_kept * shape.own + _n_filled(layer, tiles) * shape.shared
    return features * n_rows * jnp.dtype(layer.dtype).itemsize


def transposed_bytes(layer: SparseLayer, n_rows: int, tiles: GradientTiles) -> int:
    """What XLA reads and writes to transpose operands, if whoever writes them does not do it."""
    shape, (n_in, n_out) = _shape(layer, tiles), layer.kernel_shape
    features = shape.n_own * shape.own_along_rows
    features += (n_in + n_out - shape.n_own) * shape.shared_along_rows
    return 2 * features * n_rows * jnp.dtype(layer.dtype).itemsize


def summed_bytes(layer: SparseLayer, n_rows: int, tiles: GradientTiles) -> int:
    """What the sums of all shares of the rows take, which are written, read again and added up."""
    n_shares, *_ = _shares(layer, n_rows, tiles)
    return round(2 * n_shares * layer.n_kept_weights * _SUM_BYTES)


def seconds(layer: SparseLayer, n_rows: int, tiles: GradientTiles) -> float:
    """The time of a gradient: of its loads or its steps, in waves, and of what XLA does with it.

    That is to transpose operands and to add up the sums of the shares.

    A program has the registers of a multiprocessor, so each runs one at a time. A step takes as
    long as its products, as the start of its copies, or as those that the ring cannot hide.
    """
    size = jnp.dtype(layer.dtype).itemsize
    if tiles == DENSE:
        n_weights = math.prod(layer.kernel_shape)
        return (
            2 * n_rows * n_weights / (DENSE_SHARE * FLOPS[size]) + n_weights * size / MEMORY_BYTES
        )
    filled = _n_filled(layer, tiles)
    flops = 2 * layer.n_kept_weights / filled * DEPTH_BYTES / size
    step = max(
        STEP_SECONDS,
        ISSUE_SECONDS * (tiles.n_together + 1),
        COPY_SECONDS / (tiles.stages - 1),
        flops * H200_MULTIPROCESSORS / FLOPS[size],
    )
    loaded = loaded_bytes(layer, n_rows, tiles)
    loaded *= NARROW if _shape(layer, tiles).own < ROWS else 1.0
    _, n_programs, each = _shares(layer, n_rows, tiles)
    multiplied = in_waves(n_programs, 1, loaded, each * step)
    by_xla = transposed_bytes(layer, n_rows, tiles) + summed_bytes(layer, n_rows, tiles)
    return multiplied + by_xla / MEMORY_BYTES


def by_cost(layer: SparseLayer, n_rows: int, *, balanced: bool = False) -> list[GradientTiles]:
    """Every way to cut the gradient of a layer that fits, the shortest time first.

    Of equal ones what loads less comes first, then fewer programs, then the longer ring, then what
    goes by block columns, then what counts no more than it loads.

    Args:
      layer: the layer.
      n_rows: rows of x.
      balanced: whether it is the balanced ways, not the others.
    """

    def cost(tiles: GradientTiles) -> tuple[float, float, int, int, bool, int]:
        loaded = 0.0 if tiles == DENSE else loaded_bytes(layer, n_rows, tiles)
        return (
            seconds(layer, n_rows, tiles),
            loaded,
            tiles.programs,
            -tiles.stages,
            tiles.by_rows,
            tiles.beside,
        )

    def is_another(tiles: GradientTiles) -> bool:
        # In rounds all steps count alike.
        return tiles.beside == 1 or not plan_of(layer, n_rows, tiles).in_rounds

    if balanced:
        return sorted(filter(is_another, balanced_space(layer)), key=cost)
    return sorted([*search_space(layer), DENSE], key=cost)


def gradient_tiles_of(layer: SparseLayer, n_rows: int) -> GradientTiles:
    """The way to cut the gradient of a layer of so many rows that is meant to be the fastest.

    A balanced one up to `BALANCED_FOR` times as long on paper as the best of the others, by block
    columns: so measured on an H200, where those by rows take up to 30% longer. Its steps count what
    they load: whether more is faster is for the tuner to find.
    """
    other = by_cost(layer, n_rows)[0]
    balanced = [cut for cut in by_cost(layer, n_rows, balanced=True) if _is_usual(cut)]
    if other == DENSE or not balanced:
        return other
    most = BALANCED_FOR * seconds(layer, n_rows, other)
    return balanced[0] if seconds(layer, n_rows, balanced[0]) <= most else other


def _is_usual(cut: GradientTiles) -> bool:
    return not cut.by_rows and cut.beside == 1


def _shape(layer: SparseLayer, tiles: GradientTiles) -> Shape:
    return shape_of(layer, by_rows=tiles.by_rows)


def _n_filled(layer: SparseLayer, tiles: GradientTiles) -> float:
    return n_filled(layer.n_kept, _shape(layer, tiles).n_lines, tiles.n_together)


def _n_groups(layer: SparseLayer, tiles: GradientTiles) -> int:
    return n_groups_of(layer.n_kept, _shape(layer, tiles).n_lines, tiles.n_together)


def _shares(layer: SparseLayer, n_rows: int, tiles: GradientTiles) -> tuple[float, int, int]:
    """How many programs share a group, how many there are, and the most steps that one has."""
    steps, filled = n_steps(n_rows, layer.dtype), _n_filled(layer, tiles)
    if tiles.balanced:
        plan = plan_of(layer, n_rows, tiles)
        # What a step counts in the mean: as `balanced_shares.py` has it.
        step = 1.0 if plan.in_rounds else layer.n_kept / filled + plan.beside
        rounds = max(0, math.floor((filled - plan.fewest_left) / plan.n_programs))
        rounds *= plan.in_rounds
        left = (filled - rounds * plan.n_programs) * steps * step
        each = max(plan.fewest, math.ceil(left / plan.n_programs))
        n_busy = math.ceil(left / each)
        # Each of them may begin in the middle of a group.
        n_shares = 1 + n_busy / filled
        n_programs = plan.n_programs if rounds else n_busy
        return n_shares, n_programs, rounds * steps + math.ceil(each / step)
    each = tiles.per_share(steps, _n_groups(layer, tiles))
    n_shares = pl.cdiv(steps, each)
    return float(n_shares), max(1, round(n_shares * filled)), each
