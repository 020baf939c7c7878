"""Every way to cut the kernels for Hopper that the tuner may try."""

import math
from typing import Any

from pallas_kernels.mosaic import gradient_tiles, launch, product_tiles
from pallas_kernels.sparse_layer import SparseLayer
from pallas_kernels.tuning import Problem

VERSION = 1
"""Raised when a kernel changes so that times or configurations that were measured no longer hold.
"""


def configurations(problem: Problem) -> list[Any]:
    """The heuristic's choice, then the search space; nothing of kernels that have none."""
    n_blocks = math.prod(problem.kernel_shape) // math.prod(problem.block)
    n_kept = max(1, round(problem.density * n_blocks))
    layer = SparseLayer(problem.kernel_shape, problem.block, n_kept, -1, problem.dtype)
    match problem.kernel:
        case "product" | "input_gradient":
            transposed = problem.kernel == "input_gradient"
            product = product_tiles.product_of(layer, problem.n_rows, transposed=transposed)
            space = product_tiles.search_space(product, launch.SHARED_MEMORY_BYTES)
            found = [product_tiles.tiles_of(product), *space]
        case "kernel_gradient":
            space = gradient_tiles.search_space(layer)
            found = [gradient_tiles.gradient_tiles_of(layer), *space]
        case _:
            return []
    return list(dict.fromkeys(found))
