"""What engine `mosaic` computes on Hopper: each kernel cut as was measured, or as costs say.

Operands have their features side by side, and layers are seen without regard to their axis, but for
what was measured along it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from pallas_kernels.device_table import Problem
from pallas_kernels.lists import KeptBlocks, ids_of
from pallas_kernels.mosaic import (
    balanced_gradient,
    gradient,
    hidden,
    hidden_cost,
    mlp,
    mlp_cost,
    products,
    search_space,
)
from pallas_kernels.mosaic.gradient_cost import gradient_tiles_of
from pallas_kernels.mosaic.gradient_tiles import DENSE, GradientTiles
from pallas_kernels.mosaic.product_tiles import product_of
from pallas_kernels.mosaic.stream_tiles import StreamTiles, tiles_of
from pallas_kernels.reference import Reference
from pallas_kernels.sparse_layer import SparseLayer, Weights
from pallas_kernels.tuning import configure

ENGINE = "mosaic"
"""Whose measurements hold."""
_REFERENCE = Reference()


def multiply(
    x: Float[Array, "rows n"],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    kept: KeptBlocks,
    layer: SparseLayer,
    *,
    transposed: bool,
    with_gelu: bool,
    interpret: bool,
) -> Float[Array, "rows m"]:
    """`x (W * M) + b`, GELU of it, or with `transposed` `x (W * M)^T`: see `products.multiply`."""
    return products.multiply(
        x,
        kernel,
        bias,
        kept,
        layer,
        _product_tiles(layer, x.shape[0], transposed=transposed),
        transposed=transposed,
        with_gelu=with_gelu,
        interpret=interpret,
    )


def kernel_gradient(
    x: Float[Array, "rows in"],
    dy: Float[Array, "rows out"],
    kept: KeptBlocks,
    layer: SparseLayer,
    *,
    interpret: bool,
) -> Float[Array, "in out"]:
    """`dW = (x^T dy) * M`, by XLA where its product of all weights is faster.

    Args:
      x: `[rows, in]`, not empty.
      dy: `[rows, out]`.
      kept: the kept blocks, at least one.
      layer: the layer.
      interpret: whether kernels are interpreted.
    """
    tiles = _gradient_tiles(layer, x.shape[0])
    if tiles == DENSE:
        rows = dataclasses.replace(layer, axis=-1)
        return _REFERENCE.kernel_gradient(x, dy, ids_of(kept), rows)
    by = balanced_gradient if tiles.balanced else gradient
    return by.kernel_gradient(x, dy, kept, layer, tiles, interpret=interpret)


def parameter_gradients(
    x: Float[Array, "rows in"],
    dy: Float[Array, "rows out"],
    kept: KeptBlocks,
    layer: SparseLayer,
    *,
    interpret: bool,
) -> tuple[Float[Array, "in out"], Float[Array, " out"]] | None:
    """`dW` and `db` by one kernel, of arguments as `kernel_gradient`; None where there is none.

    Tensor cores would round the terms of db to TF32 first, if they were float32.
    """
    if layer.dtype != "bfloat16":
        return None
    tiles = _gradient_tiles(layer, x.shape[0])
    if not tiles.balanced:
        return None
    return balanced_gradient.parameter_gradients(x, dy, kept, layer, tiles, interpret=interpret)


def fused_mlp(
    x: Float[Array, "rows in"],
    weights: tuple[Weights, Weights],
    layers: tuple[SparseLayer, SparseLayer],
    *,
    residual: bool,
    interpret: bool,
) -> Float[Array, "rows out"] | None:
    """Both layers by one kernel, see `mlp.mlp`; None where one after the other is better."""
    tiles = _tiles_of_pair(mlp_cost.tiles_of, layers, "mlp", x.shape[0])
    if tiles is None:
        return None
    return mlp.mlp(x, weights, layers, tiles, residual=residual, interpret=interpret)


def hidden_units(
    x: Float[Array, "rows in"],
    dy: Float[Array, "rows out"],
    weights: tuple[Weights, Weights],
    layers: tuple[SparseLayer, SparseLayer],
    *,
    interpret: bool,
) -> tuple[Float[Array, "rows units"], Float[Array, "rows units"]]:
    """Hidden units after GELU, and the gradient before it.

    By one kernel, or by two products, the second of which reads the result of the first and
    computes GELU.

    Args:
      x: `[rows, in]`, not empty.
      dy: the gradient of the second layer's result.
      weights: of both layers, each of which keeps a block.
      layers: both.
      interpret: whether kernels are interpreted.
    """
    tiles = _tiles_of_pair(hidden_cost.tiles_of, layers, "mlp_gradients", x.shape[0])
    if tiles is not None:
        return hidden.hidden_units(x, dy, weights, layers, tiles, interpret=interpret)
    (w1, b1, kept1), (w2, _, kept2) = weights
    before = multiply(
        x, w1, b1, kept1, layers[0], transposed=False, with_gelu=False, interpret=interpret
    )
    cut = _product_tiles(layers[1], x.shape[0], transposed=True)
    return products.through_gelu(dy, w2, before, kept2, layers[1], cut, interpret=interpret)


def _product_tiles(layer: SparseLayer, n_rows: int, *, transposed: bool) -> StreamTiles:
    problem = _problem(layer, "input_gradient" if transposed else "product", n_rows)
    return configure(problem, tiles_of(product_of(layer, n_rows, transposed=transposed)))


def _gradient_tiles(layer: SparseLayer, n_rows: int) -> GradientTiles:
    problem = _problem(layer, "kernel_gradient", n_rows)
    return configure(problem, gradient_tiles_of(layer, n_rows))


def _tiles_of_pair(
    cut: Callable[[tuple[SparseLayer, SparseLayer], Problem], Any],
    layers: tuple[SparseLayer, SparseLayer],
    kernel: str,
    n_rows: int,
) -> Any:
    """How a kernel for two layers is cut; None where it is not taken."""
    return cut(layers, _problem(layers[0], kernel, n_rows))


def _problem(layer: SparseLayer, kernel: str, n_rows: int) -> Problem:
    return layer.problem(ENGINE, search_space.VERSION, kernel, n_rows)
