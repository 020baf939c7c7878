"""Every way to cut the kernels for Hopper that the tuner may try."""

import dataclasses
import math
from typing import Any

from pallas_kernels.device_table import Problem
from pallas_kernels.mosaic import (
    gradient_cost,
    hidden_cost,
    hidden_tiles,
    mlp_cost,
    mlp_tiles,
    product_tiles,
    stream_tiles,
)
from pallas_kernels.sparse_layer import SparseLayer

VERSION = 8
"""Raised when a kernel changes so that times or configurations that were measured no longer hold.
Those of an H200 are of kernels whose programs had less even shares, and are thought to be no faster
than they would be now."""


def configurations(problem: Problem) -> list[Any]:
    """By their cost on paper, the heuristic's choice first; none where there is no choice.

    Of the kernel's gradient the best of the others and the balanced ways follow that choice. Of a
    pair the layer is the first one, and the second one its like back.
    """
    n_blocks = math.prod(problem.kernel_shape) // math.prod(problem.block)
    n_kept = max(1, round(problem.density * n_blocks))
    layer = SparseLayer(problem.kernel_shape, problem.block, n_kept, -1, problem.dtype)
    match problem.kernel:
        case "product" | "input_gradient":
            transposed = problem.kernel == "input_gradient"
            product = product_tiles.product_of(layer, problem.n_rows, transposed=transposed)
            return stream_tiles.by_cost(product)
        case "kernel_gradient":
            first = gradient_cost.gradient_tiles_of(layer, problem.n_rows)
            best, *others = gradient_cost.by_cost(layer, problem.n_rows)
            balanced = gradient_cost.by_cost(layer, problem.n_rows, balanced=True)
            # Whoever tries few of them tries the best of both kinds.
            return list(dict.fromkeys([first, best, *balanced, *others]))
        case "mlp" | "mlp_gradients" as kernel:
            back = dataclasses.replace(layer, kernel_shape=layer.kernel_shape[::-1])
            return _of_pair((layer, back), problem.n_rows, with_gradients=kernel != "mlp")
        case _:
            return []


def _of_pair(
    layers: tuple[SparseLayer, SparseLayer], n_rows: int, *, with_gradients: bool
) -> list[Any]:
    """Those of two layers: of their results, or of what their gradients begin with."""
    apart = hidden_tiles.APART if with_gradients else mlp_tiles.APART
    if not mlp_tiles.is_fusable(layers):
        return [apart]
    if with_gradients:
        ranked: list[Any] = hidden_cost.by_cost(hidden_tiles.hidden_of(layers, n_rows))
    else:
        ranked = mlp_cost.by_cost(mlp_tiles.pair_of(layers, n_rows))
    # Whoever tries few of them tries one product after the other too.
    return list(dict.fromkeys([ranked[0], apart, *ranked]))
