"""How each kernel of engine `triton` is cut: its configurations, a heuristic and a search space.

Of the three products in bfloat16 the heuristics are the fastest or near that of six that were timed
of each on an H200, with 8192 rows and a fifth of square blocks of 32 to 128
(`experiments/results/gpu_nvidia_h200/candidates.jsonl`); no other one was timed. A search space
begins with what was fast there, and holds what fits: sides are powers of two, the tiles of a loop
with all loads in flight fit the shared memory of an A30, the smaller of the GPUs that the kernels
are compiled for, and what a thread keeps of a sum leaves room for its operands, so that no register
is spilled.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from pallas_kernels.device_table import Problem
from pallas_kernels.precision import in_tf32
from pallas_kernels.sparse_layer import SparseLayer
from pallas_kernels.triton.launch import Tiles

VERSION = 3
"""Raised when a kernel changes so that times or configurations that were measured no longer hold.
"""
SHARED_BYTES = 160 << 10
SUMS_OF_A_THREAD = 64
"""Float32 numbers of the result that a thread keeps, at most."""


@dataclasses.dataclass(frozen=True)
class GradientTiles(Tiles):
    """How a kernel's gradient is cut.

    Attributes:
      programs: how many programs it is cut into at least, if it has the rows.
    """

    programs: int


@dataclasses.dataclass(frozen=True)
class CompactTiles(Tiles):
    """How the gradient from kept blocks of an activation is cut; `rows` of them are one product.

    Attributes:
      outputs: outputs of one program, at most.
    """

    outputs: int


@dataclasses.dataclass(frozen=True)
class PrunedTiles(Tiles):
    """How the product with a pruned gradient is cut.

    Attributes:
      inputs: inputs of one program, at most.
      outputs: outputs of one product, at least; two groups at least in any case.
    """

    inputs: int
    outputs: int


def product_tiles(layer: SparseLayer) -> Tiles:
    """How `product` and `input_gradient` are cut where nothing was measured.

    Float32 that is not multiplied in TF32 takes no tensor cores, but registers for all that a
    product contracts: more rows or fewer warps spill them. Of a layer of 1024 to 4096, 128 rows, 4
    warps and 3 stages took 60 us for Y with blocks of 64x64, as 2 and 4 stages did, where 8 warps
    and 4 stages took 63; with 128x128, 64 rows, 4 warps and 3 stages took 70 us, the least of six.
    """
    if layer.dtype == "float32" and not in_tf32():
        return Tiles(32, warps=8, stages=2)
    if layer.dtype == "bfloat16" and layer.block == (128, 128):
        return Tiles(64, warps=4, stages=3)
    is_large = math.prod(layer.block) > 64 * 64
    rows = 64 if is_large and layer.dtype == "float32" else 128
    return Tiles(rows, warps=8 if is_large else 4, stages=3)


def gradient_tiles(layer: SparseLayer) -> GradientTiles:
    """How `kernel_gradient` is cut where nothing was measured.

    In float32, 64 rows of blocks of 128x128 would take more shared memory than the 99 KB that GPUs
    of compute capability 8.6 and 8.9 have. Where it is not multiplied in TF32, see `product_tiles`.
    Of a layer of 1024 to 4096 in bfloat16 with blocks of 64x64, 32 rows and 4 warps took 60 us,
    where 64 rows and 8 warps took 64 to 73 (45 at 768 to 3072, where these took 38 to 45); with
    128x128, 32 rows and 4 stages took 59 us, and 64 rows and 3 stages 57 (42 and 43).
    """
    if layer.dtype == "float32" and not in_tf32():
        return GradientTiles(32, warps=8, stages=2, programs=512)
    if layer.dtype == "bfloat16" and layer.block == (64, 64):
        return GradientTiles(32, warps=4, stages=4, programs=512)
    if layer.dtype == "bfloat16" and layer.block == (128, 128):
        return GradientTiles(32, warps=8, stages=4, programs=264)
    is_large = math.prod(layer.block) > 64 * 64
    is_largest = math.prod(layer.block) == 128 * 128
    return GradientTiles(32 if is_largest else 64, 8 if is_large else 4, stages=3, programs=512)


def compact_tiles() -> CompactTiles:
    """How `compact_gradient` is cut where nothing was measured."""
    return CompactTiles(32, warps=4, stages=2, outputs=64)


def pruned_tiles() -> PrunedTiles:
    """How `pruned_input_gradient` is cut where nothing was measured."""
    return PrunedTiles(64, warps=4, stages=2, inputs=64, outputs=32)


def search_space(problem: Problem) -> Iterator[Tiles]:
    """Every configuration of a kernel that is worth a try; nothing of kernels that have none.

    Those of the three products come in the order of what was timed on an H200.
    """
    (rows, cols), n_bytes = problem.block, 4 if problem.dtype == "float32" else 2
    launches = itertools.product((4, 8), (2, 3, 4))
    match problem.kernel:
        case "product" | "input_gradient" | "convolution" | "convolution_input_gradient":
            is_forward = problem.kernel in ("product", "convolution")
            width, depth = (rows, cols) if is_forward else (cols, rows)
            choices = itertools.product((128, 256, 64, 32), (4, 8), (3, 4, 2))
            for size, warps, stages in choices:
                if _fits(size, width, depth, warps, stages, n_bytes):
                    yield Tiles(size, warps, stages)
        case "kernel_gradient" | "convolution_gradients":
            many_first = (8, 4) if rows * cols >= 64 * 64 else (4, 8)
            choices = itertools.product((64, 32, 128), many_first, (4, 3, 2), (512, 1024, 264))
            for size, warps, stages, programs in choices:
                if _fits(cols, rows, size, warps, stages, n_bytes):
                    yield GradientTiles(size, warps, stages, programs)
        case "compact_gradient":
            sizes = itertools.product((16, 32, 64), (32, 64, 128))
            for (warps, stages), (size, outputs) in itertools.product(launches, sizes):
                if _fits(max(16, cols), outputs, size, warps, stages, n_bytes):
                    yield CompactTiles(size, warps, stages, outputs)
        case "pruned_input_gradient":
            sizes = itertools.product((32, 64, 128), (32, 64, 128), (32, 64))
            for (warps, stages), (size, inputs, outputs) in itertools.product(launches, sizes):
                depth = max(outputs, 2 * problem.block[1])
                # The comparisons hold a chunk of the gradient in registers, about twice, and are
                # written out once for each that is kept or dropped.
                n, m = problem.block
                chunk = size * depth // (32 * warps)
                held = size * inputs // (32 * warps) + 2 * chunk
                comparisons = chunk * min(n, m - n)
                has_room = held <= 96 and comparisons <= (512 if stages == 2 else 128)
                if has_room and _fits(size, inputs, depth, warps, stages, n_bytes):
                    yield PrunedTiles(size, warps, stages, inputs, outputs)


def _fits(height: int, width: int, depth: int, warps: int, stages: int, n_bytes: int) -> bool:
    """Whether a program that sums a tile `[height, width]` over `depth` at a time has the room."""
    # Tensor cores give each warp 16 rows of the result or more; fewer leave warps without work.
    has_work = warps == 4 or height * width >= 256 * warps
    sums = height * width // (32 * warps)
    shared = stages * (height + width) * depth * n_bytes
    return has_work and sums <= SUMS_OF_A_THREAD and shared <= SHARED_BYTES
