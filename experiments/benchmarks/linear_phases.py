"""What the benchmark of a linear layer times: products and gradients, dense and sparse."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels import Engine, SparseLayer, dense
from pallas_kernels import Phase as Product
from sparsemlp import BlockMask, select_blocks, sparse_linear
from sparsemlp.cost_models.costs import MASKED_PRODUCTS
from sparsemlp.engines import choose_engine
from sparsemlp.rules import Backward


class Tensors(NamedTuple):
    """What a layer and its backward pass are given; `kept` are the ids of the kept blocks."""

    x: Array
    kernel: Array
    bias: Array
    dy: Array
    kept: Array


Phase = Callable[[Tensors], Any]


def phases(engine: str, layer: SparseLayer, backward: Backward) -> dict[str, tuple[Phase, Phase]]:
    """What is timed, by name: a function of the dense layer by XLA, and one of the sparse layer.

    `forward_backward` returns y, dx, dW and db, so that nothing of it can be left out. A gradient
    that this backward pass computes dense is no comparison, and is not among the phases.

    Args:
      engine: who computes the sparse products: `auto`, or the name of an engine.
      layer: the layer.
      backward: what the products of the backward pass use.
    """

    def dense_layer(x: Array, kernel: Array, bias: Array, kept: Array) -> Array:
        del kept
        return sparse_linear(x, kernel, bias, axis=layer.axis)

    def sparse_layer(x: Array, kernel: Array, bias: Array, kept: Array) -> Array:
        return sparse_linear(
            x,
            kernel,
            bias,
            axis=layer.axis,
            mask=BlockMask(kept, layer.kernel_shape, layer.block),
            backward=backward,
            engine=engine,
        )

    found: dict[str, tuple[Phase, Phase]] = {
        "forward": (_forward(dense_layer), _forward(sparse_layer))
    }
    if backward != "dense":
        found["input_gradient"] = (
            lambda t: dense.input_gradient(t.dy, t.kernel, layer.axis),
            lambda t: _chosen(engine, layer, "input_gradient", t).input_gradient(
                t.dy, t.kernel, t.kept, layer
            ),
        )
    if backward == "masked":
        found["parameter_gradients"] = (
            lambda t: (
                dense.kernel_gradient(t.x, t.dy, layer.axis),
                dense.bias_gradient(t.dy, layer.axis),
            ),
            lambda t: _chosen(engine, layer, "kernel_gradient", t).parameter_gradients(
                t.x, t.dy, t.kept, layer
            ),
        )
    found["forward_backward"] = (_forward_backward(dense_layer), _forward_backward(sparse_layer))
    return found


def random_tensors(layer: SparseLayer, n_rows: int, n_channels: int, ratio: float) -> Tensors:
    """Normal numbers in the shapes of a layer, and the blocks that selection keeps of them.

    Args:
      layer: the layer.
      n_rows: rows of x, `[n_rows, in]`; over tokens, x is `[n_rows / channels, in, channels]`.
      n_channels: channels of x over tokens.
      ratio: fraction of blocks to drop.
    """
    in_features, out_features = layer.kernel_shape

    def shape(features: int) -> tuple[int, ...]:
        if layer.axis == -1:
            return (n_rows, features)
        return (n_rows // n_channels, features, n_channels)

    keys = jax.random.split(jax.random.key(0), 4)
    dtype = jnp.dtype(layer.dtype)
    kernel = jax.random.normal(keys[1], layer.kernel_shape, dtype) / in_features**0.5
    return Tensors(
        x=jax.random.normal(keys[0], shape(in_features), dtype),
        kernel=kernel,
        bias=jax.random.normal(keys[2], (out_features,), dtype),
        dy=jax.random.normal(keys[3], shape(out_features), dtype),
        kept=select_blocks(kernel, layer.block, ratio).kept,
    )


def n_flops(layer: SparseLayer, n_rows: int, backward: Backward) -> int:
    """Operations that forward and backward need: two a row and weight in each of three products.

    In a product that uses the mask, only the kept weights count.
    """
    n_sparse = MASKED_PRODUCTS[backward]
    n_weights = layer.kernel_shape[0] * layer.kernel_shape[1]
    n_kept = layer.n_kept * layer.block[0] * layer.block[1]
    return 2 * n_rows * (n_sparse * n_kept + (3 - n_sparse) * n_weights)


def _chosen(engine: str, layer: SparseLayer, phase: Product, t: Tensors) -> Engine:
    return choose_engine(engine, layer, phase, t.x.size // t.x.shape[layer.axis])


def _forward(linear: Callable[..., Array]) -> Phase:
    return lambda t: linear(t.x, t.kernel, t.bias, t.kept)


def _forward_backward(linear: Callable[..., Array]) -> Phase:
    def run(t: Tensors) -> tuple[Array, ...]:
        def layer(x: Array, kernel: Array, bias: Array) -> Array:
            return linear(x, kernel, bias, t.kept)

        y, pullback = jax.vjp(layer, t.x, t.kernel, t.bias)
        return y, *pullback(t.dy)

    return run
