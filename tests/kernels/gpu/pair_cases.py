"""GPU kernels of two layers with the operands that they are compiled for where there is no GPU."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from cases import ENGINES, N_IN, Case, kept_of

from pallas_kernels import SparseLayer, Weights
from pallas_kernels.mosaic import hidden, hidden_tiles
from pallas_kernels.mosaic.mlp_tiles import APART
from pallas_kernels.triton import mlp, mlp_input_gradient, mlp_weight_gradient, pair_tiles


def mlp_case(
    kernel: str,
    block: tuple[int, int],
    dtype: Any,
    width: int = N_IN,
    engine: str = "triton",
    configuration: Any = None,
) -> Case:
    """One kernel for two layers of `width`, four times that and `width` features.

    Those of engine `triton` are cut as registers hold them best, unless a configuration is given.
    """
    n_blocks, name = 4 * width**2 // (block[0] * block[1]), jnp.dtype(dtype).name
    shapes = ((width, 4 * width), (4 * width, width))
    first, second = (SparseLayer(shape, block, n_blocks // 5, -1, name) for shape in shapes)
    layers = (first, second)
    x = jax.ShapeDtypeStruct((8192, width), dtype)
    weights = [
        array
        for layer in layers
        for array in (
            jax.ShapeDtypeStruct(layer.kernel_shape, dtype),
            jax.ShapeDtypeStruct(layer.kernel_shape[1:], dtype),
            kept_of(layer),
        )
    ]

    def pair(arrays: tuple[Any, ...]) -> Any:
        return Weights(*arrays[:3]), Weights(*arrays[3:])

    def forward(x: Any, *w: Any) -> Any:
        return ENGINES[engine].mlp(x, pair(w), layers, True)

    def fused(x: Any, *w: Any) -> Any:
        tiles = configuration or pair_tiles.fused_tiles(layers)
        assert tiles is not None
        return mlp.mlp(x, pair(w), layers, tiles, residual=True, interpret=False)

    def gradient_tiles() -> Any:
        return configuration or pair_tiles.fused_gradient_tiles(layers)

    def of_x(x: Any, dy: Any, *w: Any) -> Any:
        return mlp_input_gradient.input_gradient(
            x, dy, pair(w), layers, gradient_tiles().inputs, residual=True, interpret=False
        )

    def of_weights(x: Any, dy: Any, *w: Any) -> Any:
        return mlp_weight_gradient.parameter_gradients(
            x, dy, pair(w), layers, gradient_tiles().shares, interpret=False
        )

    def of_units(x: Any, dy: Any, *w: Any) -> Any:
        return hidden.hidden_units(x, dy, pair(w), layers, configuration, interpret=False)

    calls = {
        "mlp": (fused if engine == "triton" else forward, [x]),
        "gelu": (forward, [x]),
        "hidden": (of_units, [x, x]),
        "mlp_input": (of_x, [x, x]),
        "mlp_weights": (of_weights, [x, x]),
    }
    call, rows = calls[kernel]
    operands = (*rows, *weights)
    return Case(engine, f"sparsemlp_{kernel}", block, dtype, -1, call, operands, configuration)


FUSED = {"mlp": "mlp", "hidden": "mlp_gradients"}
"""Kernels of engine `mosaic` for two layers, and what the tuner calls them."""


def fused(kernel: str, block: tuple[int, int], dtype: Any, width: int) -> list[Any]:
    """Every cut of a kernel of engine `mosaic` for two layers, the cheapest on paper first."""
    shape = (width, 4 * width)
    n_blocks = math.prod(shape) // math.prod(block)
    layer = SparseLayer(shape, block, n_blocks // 5, -1, jnp.dtype(dtype).name)
    space = ENGINES["mosaic"].configurations(layer.problem("mosaic", 1, FUSED[kernel], 8192))
    return [cut for cut in space if cut not in (APART, hidden_tiles.APART)]


def fused_case(kernel: str, block: tuple[int, int], dtype: Any, width: int) -> Case:
    """A kernel of engine `mosaic` for two layers, cut as costs least of all that is fused."""
    best = fused(kernel, block, dtype, width)[0]
    return mlp_case(kernel, block, dtype, width, "mosaic", best)
