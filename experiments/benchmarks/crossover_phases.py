"""What the search for crossovers compares: each phase of a layer by XLA, and by native code."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels import Phase, SparseLayer, Weights, dense
from pallas_kernels.cpu import calls, pair_calls
from sparsemlp import BlockMask
from sparsemlp.blocks import Block
from sparsemlp.gelu import gelu
from sparsemlp.mlp import Linear, sparse_mlp

PAIRS: tuple[Phase, ...] = ("mlp", "straight_through_mlp")
"""The phases of a pair of layers, which has none along tokens."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A kernel and the rows of x: an entry of the table."""

    kernel_shape: tuple[int, int]
    axis: Literal[-1, -2]
    n_rows: int
    channels: int

    def __str__(self) -> str:
        in_features, out_features = self.kernel_shape
        along = "tokens:" if self.axis == -2 else ""
        return f"{along}{in_features}x{out_features}, {self.n_rows} rows"

    def layer(self, block: Block, n_kept: int) -> SparseLayer:
        """This layer with so many blocks."""
        return SparseLayer(self.kernel_shape, block, n_kept, self.axis, "float32")

    def normal(self, seed: int, features: int) -> Array:
        """Normal numbers in the shape of x with so many features."""
        shape = (self.n_rows, features)
        if self.axis == -2:
            shape = (self.n_rows // self.channels, features, self.channels)
        return jax.random.normal(jax.random.key(seed), shape)


class Comparison(NamedTuple):
    """What is timed: `dense(*operands)`, and `native(layer)(kept, *operands)`.

    `stepwise(layer)(kept, *operands)`, if there is one, is what else would be done instead.
    """

    operands: tuple[Array, ...]
    dense: Callable[..., Any]
    native: Callable[[SparseLayer], Callable[..., Any]]
    stepwise: Callable[[SparseLayer], Callable[..., Any]] | None = None


def comparisons(case: Case) -> dict[str, Comparison]:
    """What is compared, by phase.

    `kernel_gradient` includes that of the bias, beside the other two products: XLA computes dW on
    one core, and them meanwhile on the others, so alone it would seem dearer than it is. `mlp` is
    forward and backward of the layer and its like from `out` to `in`, the narrower sides outside,
    and `straight_through_mlp` the same with the gradients of all blocks, compared with masked
    products and XLA's dW one after another as well; along tokens there are none.
    """
    axis, (n_in, n_out) = case.axis, case.kernel_shape
    x, dy = case.normal(0, n_in), case.normal(1, n_out)
    kernel = jax.random.normal(jax.random.key(2), (n_in, n_out)) / n_in**0.5
    bias = jnp.ones(n_out)
    found = {
        "product": Comparison(
            (x, kernel, bias),
            lambda x, kernel, bias: dense.product(x, kernel, bias, axis),
            lambda layer: (
                lambda kept, x, kernel, bias: calls.multiply(
                    x, kernel, bias, kept, layer, transposed=False
                )
            ),
        ),
        "input_gradient": Comparison(
            (dy, kernel),
            lambda dy, kernel: dense.input_gradient(dy, kernel, axis),
            lambda layer: (
                lambda kept, dy, kernel: calls.multiply(
                    dy, kernel, None, kept, layer, transposed=True
                )
            ),
        ),
        "kernel_gradient": Comparison(
            (x, kernel, bias, dy),
            lambda *given: _layer(axis, *given),
            lambda layer: lambda kept, *given: _layer(axis, *given, native=(layer, kept)),
        ),
    }
    if axis == -1:
        narrow, hidden = sorted((n_in, n_out))
        arrays = [
            array
            for seed, shape in enumerate(((narrow, hidden), (hidden, narrow)))
            for array in (
                jax.random.normal(jax.random.key(seed), shape) / shape[0] ** 0.5,
                jnp.ones(shape[1]),
            )
        ]
        operands = (case.normal(3, narrow), case.normal(4, narrow), *arrays)
        found["mlp"] = Comparison(operands, _dense_mlp, _native_mlp)
        straight_through = functools.partial(_native_mlp, straight_through=True)
        found["straight_through_mlp"] = Comparison(
            operands, _dense_mlp, straight_through, _stepwise_mlp
        )
    return found


def _layer(
    axis: int,
    x: Array,
    kernel: Array,
    bias: Array,
    dy: Array,
    native: tuple[SparseLayer, Array] | None = None,
) -> Any:
    """y, dx, and dW and db, the last two by native code if `native` gives layer and kept blocks."""
    if native is None:
        gradients = (dense.kernel_gradient(x, dy, axis), dense.bias_gradient(dy, axis))
    else:
        gradients = calls.gradient(x, dy, native[1], native[0], with_bias=True)
    y = dense.product(x, kernel, bias, axis)
    return y, dense.input_gradient(dy, kernel, axis), *gradients


def _dense_mlp(x: Array, dy: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Any:
    def pair(*given: Array) -> Array:
        x, w1, b1, w2, b2 = given
        return sparse_mlp(x, Linear(w1, b1), Linear(w2, b2), residual=True)

    y, pullback = jax.vjp(pair, x, w1, b1, w2, b2)
    return y, pullback(dy)


def _native_mlp(layer: SparseLayer, *, straight_through: bool = False) -> Callable[..., Any]:
    layers = _pair(layer)

    def pair(kept: Array, x: Array, dy: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Any:
        weights = (Weights(w1, b1, kept), Weights(w2, b2, kept))
        y = pair_calls.mlp(x, weights, layers, residual=True)
        return y, pair_calls.mlp_gradients(
            x, dy, weights, layers, residual=True, straight_through=straight_through
        )

    return pair


def _stepwise_mlp(layer: SparseLayer) -> Callable[..., Any]:
    shapes = [each.kernel_shape for each in _pair(layer)]

    def pair(kept: Array, x: Array, dy: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Any:
        masks = [BlockMask(kept, shape, layer.block) for shape in shapes]

        def forward(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
            hidden = gelu(Linear(w1, b1, masks[0], "straight_through")(x))
            return x + Linear(w2, b2, masks[1], "straight_through")(hidden)

        y, pullback = jax.vjp(forward, x, w1, b1, w2, b2)
        return y, pullback(dy)

    return pair


def _pair(layer: SparseLayer) -> tuple[SparseLayer, SparseLayer]:
    """The layer and its like from `out` to `in`, the expanding one first."""
    narrow, hidden = sorted(layer.kernel_shape)
    return (
        dataclasses.replace(layer, kernel_shape=(narrow, hidden)),
        dataclasses.replace(layer, kernel_shape=(hidden, narrow)),
    )
