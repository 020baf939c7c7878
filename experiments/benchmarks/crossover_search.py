"""From which ratio on a native product pays."""

import bisect
import statistics
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.crossover_phases import Case, Comparison, Way
from benchmarks.timing import repeated, steps_in_a_turn, take_turns
from pallas_kernels import SparseLayer
from pallas_kernels.cpu.crossover import RATIOS
from sparsemlp.blocks import Block, divides, n_kept_blocks

MARGIN = 0.97
"""Native pays where it takes at most this share of the time of what would be done without it."""
_TURN_SECONDS = 0.01


def ratios_of(case: Case, block: Block) -> list[float]:
    """Those of `RATIOS` that drop blocks, one for each number of kept ones."""
    if not divides(block, case.kernel_shape):
        return []
    n_blocks = case.n_blocks(block)
    of_kept = {n_kept_blocks(n_blocks, ratio): ratio for ratio in reversed(RATIOS)}
    return sorted(ratio for n_kept, ratio in of_kept.items() if n_kept < n_blocks)


def smallest_ratio(comparison: Comparison, case: Case, block: Block, rounds: int) -> float | None:
    """The smallest of `RATIOS` at which native code pays; None if it never does.

    The ways with the native product and those without take turns, each into the memory of its last
    result, and the fastest of each are compared. Time grows with the kept blocks, so the ratio is
    found by bisection.

    Args:
      comparison: what is timed.
      case: the kernel and the rows of x.
      block: `(rows, cols)`, one that `ratios_of` has ratios for.
      rounds: turns of each way; their medians are compared.
    """
    n_blocks = case.n_blocks(block)
    rng = np.random.default_rng(0)

    def pays(ratio: float) -> bool:
        n_kept = n_kept_blocks(n_blocks, ratio)
        kept = np.sort(rng.choice(n_blocks, n_kept, replace=False))
        given = (jnp.asarray(kept, jnp.int32), *comparison.operands)
        layer = case.layer(block, n_kept)
        ways = [*comparison.native, *comparison.others]
        contenders = {str(i): repeated(_of_one(way, layer), given) for i, way in enumerate(ways)}
        steps = {name: steps_in_a_turn(run, _TURN_SECONDS) for name, run in contenders.items()}
        seconds = take_turns(contenders, rounds, steps)
        medians = [statistics.median(seconds[name]) for name in contenders]
        n_native = len(comparison.native)
        return min(medians[:n_native]) <= MARGIN * min(medians[n_native:])

    ratios = ratios_of(case, block)
    if not pays(ratios[-1]):
        return None
    return ratios[bisect.bisect_left(ratios[:-1], True, key=pays)]


def _of_one(way: Way, layer: SparseLayer) -> Callable[[tuple[Array, ...]], Any]:
    """The way as a function of all its operands in one."""
    return lambda operands: way(layer, *operands)
