"""How the kernels for two layers are cut: one product after the other, or fused as was measured.

A fused pair computes hidden units in every program that needs them, which is more arithmetic than
one product after the other and less traffic. On an H200 the arithmetic decides: of 8192 rows in
bfloat16 with a fifth of 64x64 blocks, the gradients of 768 to 3072 and back took 2306 us fused and
304 us apart (`experiments/results/gpu_nvidia_h200/candidates.jsonl`). So nothing is fused by
heuristic, and the tuner may find out where it is faster on another GPU.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

from pallas_kernels.device_table import Problem
from pallas_kernels.precision import in_tf32
from pallas_kernels.sparse_layer import SparseLayer
from pallas_kernels.triton.launch import Tiles
from pallas_kernels.tuning import configure

Layers = tuple[SparseLayer, SparseLayer]

MOST_FEATURES = 768
"""Inputs and outputs of a fused pair at most: beyond, hidden units are computed twice and more."""
SUMS_OF_A_THREAD = 96
"""Float32 numbers of the result that a thread keeps, at most."""
SUMS_OF_A_SHARE = 64
"""The same of the gradients of kernels, which need their operands of both layers beside them."""
LEAST_SUMS = 4
"""Of any tile: what a thread keeps of the smallest that a warp multiplies, 16x8."""


@dataclasses.dataclass(frozen=True)
class MlpTiles(Tiles):
    """How a fused product is cut.

    Attributes:
      features: features of a program's result at most, whose sums are in registers.
      units: hidden units computed at a time at most, a power of two from 16.
    """

    features: int
    units: int


@dataclasses.dataclass(frozen=True)
class ShareTiles(Tiles):
    """How the gradients of the parameters are cut.

    Attributes:
      units: hidden units computed at a time at most, a power of two from 16.
      slots: kept blocks of each layer that a program has sums for.
      programs: how many programs there are at least, if there are the rows.
    """

    units: int
    slots: int
    programs: int


@dataclasses.dataclass(frozen=True)
class GradientTiles(MlpTiles):
    """How both kernels of the gradients are cut, in numbers: `inputs` and `shares`."""

    share_rows: int
    share_warps: int
    share_stages: int
    share_units: int
    slots: int
    programs: int

    @property
    def inputs(self) -> MlpTiles:
        """How the gradient of x is cut."""
        return MlpTiles(self.rows, self.warps, self.stages, self.features, self.units)

    @property
    def shares(self) -> ShareTiles:
        """How the gradients of the parameters are cut."""
        launch = self.share_rows, self.share_warps, self.share_stages
        return ShareTiles(*launch, self.share_units, self.slots, self.programs)


APART = MlpTiles(0, 0, 0, 0, 0)
"""Stands for one product after the other."""
GRADIENTS_APART = GradientTiles(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
"""The same of the gradients."""


def mlp_tiles(layers: Layers, problem: Problem) -> MlpTiles | None:
    """How the result of two layers is cut, as was measured; None: apart, also where nothing was."""
    tiles = configure(problem, APART) if _is_like_measured(layers) else APART
    return None if tiles == APART else tiles


def gradient_tiles(layers: Layers, problem: Problem) -> GradientTiles | None:
    """How the gradients of two layers are cut, as was measured; None: apart, as `mlp_tiles`."""
    tiles = configure(problem, GRADIENTS_APART) if _is_like_measured(layers) else GRADIENTS_APART
    return None if tiles == GRADIENTS_APART else tiles


def configurations(problem: Problem) -> list[Any]:
    """One product after the other first, then what registers hold best, and the search space.

    Of a pair the layer is the first one, and the second one its like back.
    """
    first = SparseLayer(problem.kernel_shape, problem.block, 1, -1, problem.dtype)
    layers = first, dataclasses.replace(first, kernel_shape=problem.kernel_shape[::-1])
    if problem.kernel == "mlp":
        found = [APART, fused_tiles(layers), *_search_space(layers, "mlp")]
    else:
        found = [GRADIENTS_APART, fused_gradient_tiles(layers), *_gradient_search_space(layers)]
    return list(dict.fromkeys(tiles for tiles in found if tiles is not None))


def fused_tiles(layers: Layers) -> MlpTiles | None:
    """What gives all features to one program; None if registers do not hold their sums."""
    tiles = _tiles_of(layers[1].kernel_shape[1])
    return tiles if _is_fusable(layers) and _fits(tiles, layers[1].block[0]) else None


def fused_gradient_tiles(layers: Layers) -> GradientTiles | None:
    """The same for the gradient of x, and the shares.

    Registers of the shares are spilled, however they are cut, where a side of 128 meets one of 32.
    """
    sides = *layers[0].block, *layers[1].block
    is_oblong = max(sides) == 128 and min(sides) <= 32
    longest = max(layers[0].block[1], layers[1].block[0])
    tiles = _tiles_of(layers[0].kernel_shape[0], most_units=32 if longest <= 64 else 16)
    if is_oblong or not _is_fusable(layers) or not _fits(tiles, layers[0].block[1]):
        return None
    return _both(tiles, _shares(layers))


def _is_like_measured(layers: Layers) -> bool:
    """Whether a measurement may be of such a pair: out of the narrow side and back, blocks alike.

    A table knows a pair by its two widths and the first block: others may have the same.
    """
    first, second = layers
    back = second.kernel_shape == first.kernel_shape[::-1]
    return back and second.block == first.block and first.kernel_shape[0] <= first.kernel_shape[1]


def _is_fusable(layers: Layers) -> bool:
    """Whether fused kernels may pay, and the compiler has the registers.

    Not where float32 is multiplied without tensor cores: arithmetic decides there, and what a
    product contracts has to be in registers as well.
    """
    features = layers[0].kernel_shape[0], layers[1].kernel_shape[1]
    return max(features) <= MOST_FEATURES and (layers[0].dtype != "float32" or in_tf32())


def _tiles_of(features: int, most_units: int = 32) -> MlpTiles:
    """64 rows of up to 384 features, or 32 of up to 768 and shorter runs of hidden units."""
    rows, units = (64, 32) if features <= 384 else (32, 16)
    warps = 4 if features <= 64 else 8
    return MlpTiles(rows, warps, stages=2, features=features, units=min(units, most_units))


def _shares(layers: Layers) -> ShareTiles:
    """The rows that leave registers enough for the sums of a slot, and as many slots as fit."""
    sides = *layers[0].block, *layers[1].block
    longest, is_narrow = max(layers[0].block[1], layers[1].block[0]), min(sides) < 32
    if layers[0].dtype == "bfloat16":
        rows = 32 if longest > 64 or is_narrow else 64
    else:
        rows = 16 if longest > 64 else 64
    slots = max(1, min(2, 64 // longest) if is_narrow else 128 // longest)
    return ShareTiles(rows, warps=8, stages=2, units=32, slots=slots, programs=512)


def _both(tiles: MlpTiles, shares: ShareTiles) -> GradientTiles:
    return GradientTiles(*dataclasses.astuple(tiles), *dataclasses.astuple(shares))


def _fits(tiles: MlpTiles, width: int) -> bool:
    """Whether a thread has the registers for the sums of a program, whose blocks are so wide."""
    of_a_block = max(LEAST_SUMS, tiles.rows * width // (32 * tiles.warps))
    return tiles.features // width * of_a_block <= SUMS_OF_A_THREAD


def _search_space(layers: Layers, kernel: str) -> Iterator[MlpTiles]:
    """All features in one program, or in two."""
    if not _is_fusable(layers):
        return
    first, second = layers
    features, width = (
        (second.kernel_shape[1], second.block[0])
        if kernel == "mlp"
        else (first.kernel_shape[0], first.block[1])
    )
    longest_run = min(first.block[0], second.block[1])
    groups = sorted({features, math.ceil(features / 2 / width) * width}, reverse=True)
    units = [n for n in (16, 32, 64) if n <= longest_run]
    for own in itertools.product((32, 64, 128), (4, 8), (2, 3), groups, units):
        tiles = MlpTiles(*own)
        # Hidden units, and of the gradient of x also what reaches them.
        hidden = tiles.rows * tiles.units // (32 * tiles.warps)
        if _fits(tiles, width) and hidden <= 16:
            yield tiles


def _share_space(layers: Layers) -> Iterator[ShareTiles]:
    """Slots for some of the longest lists, as far as registers go."""
    first, second = layers
    longest_run = min(first.block[0], second.block[1])
    units = [n for n in (16, 32) if n <= longest_run]
    choices = (16, 32, 64), (4, 8), (1, 2), units, (1, 2, 4), (264, 512, 1024)
    for own in itertools.product(*choices):
        tiles = ShareTiles(*own)
        of_a_slot = (
            max(LEAST_SUMS, side * tiles.units // (32 * tiles.warps))
            for side in (first.block[1], second.block[0])
        )
        if tiles.slots * sum(of_a_slot) <= SUMS_OF_A_SHARE:
            yield tiles


def _gradient_search_space(layers: Layers) -> Iterator[GradientTiles]:
    """Each of both kernels by itself first, in no order, then any two."""
    inputs, shares = list(_search_space(layers, "mlp_gradients")), list(_share_space(layers))
    if not inputs:
        return
    first_input, first_shares = inputs[0], shares[0]
    fused = fused_gradient_tiles(layers)
    if fused is not None:
        first_input, first_shares = fused.inputs, fused.shares
    alone = [_both(tiles, first_shares) for tiles in inputs]
    alone += [_both(first_input, own) for own in shares]
    random.Random(0).shuffle(alone)
    yield from alone
    yield from itertools.starmap(_both, itertools.product(inputs, shares))
