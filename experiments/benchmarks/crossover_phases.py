"""What the search for crossovers compares: each phase of a layer by native code, and by XLA."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels import Phase, Reference, SparseLayer, Weights
from pallas_kernels.cpu import calls, pair_calls
from sparsemlp import BlockMask
from sparsemlp.blocks import Block
from sparsemlp.gelu import gelu
from sparsemlp.layer import Linear
from sparsemlp.rules import Backward

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

    def n_blocks(self, block: Block) -> int:
        """Blocks that the kernel has."""
        return math.prod(self.kernel_shape) // math.prod(block)

    def normal(self, seed: int, features: int) -> Array:
        """Normal numbers in the shape of x with so many features."""
        shape = (self.n_rows, features)
        if self.axis == -2:
            shape = (self.n_rows // self.channels, features, self.channels)
        return jax.random.normal(jax.random.key(seed), shape)


Way = Callable[..., Any]
"""`way(layer, kept, *operands)` computes a phase with the kept blocks of a layer."""


class Comparison(NamedTuple):
    """What is timed: the ways with the native product in question against those without it.

    The fastest of each count.
    """

    operands: tuple[Array, ...]
    native: tuple[Way, ...]
    others: tuple[Way, ...]


def comparisons(case: Case) -> dict[str, Comparison]:
    """What is compared, by phase.

    Without native code XLA multiplies by the masked kernel. `kernel_gradient` includes that of the
    bias, beside the other two products, both native or both by XLA: XLA computes dW on one core,
    and its other products meanwhile on the others, so alone it would seem dearer than it is, and
    beside native ones it is dearer than beside its own. `mlp` is forward and backward of the layer
    and its like from `out` to `in`, the narrower sides outside, compared with the products of the
    two one after another, native or by XLA; `straight_through_mlp` is the same with the gradients
    of all blocks. Along tokens there are none.
    """
    n_in, n_out = case.kernel_shape
    x, dy = case.normal(0, n_in), case.normal(1, n_out)
    kernel = jax.random.normal(jax.random.key(2), (n_in, n_out)) / n_in**0.5
    bias = jnp.ones(n_out)
    found = {
        "product": Comparison((x, kernel, bias), (_native_product,), (_reference_product,)),
        "input_gradient": Comparison(
            (dy, kernel), (_native_input_gradient,), (_reference_input_gradient,)
        ),
        "kernel_gradient": Comparison(
            (x, kernel, bias, dy),
            tuple(_layer(native_products=each, native_gradient=True) for each in (False, True)),
            tuple(_layer(native_products=each, native_gradient=False) for each in (False, True)),
        ),
    }
    if case.axis == -1:
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
        backwards: dict[str, Backward] = {
            "mlp": "masked",
            "straight_through_mlp": "straight_through",
        }
        for phase, backward in backwards.items():
            fused = functools.partial(_fused_mlp, straight_through=backward == "straight_through")
            steps = (_stepwise_mlp(engine, backward) for engine in ("cpu", "reference"))
            found[phase] = Comparison(operands, (fused,), tuple(steps))
    return found


def _native_product(layer: SparseLayer, kept: Array, x: Array, kernel: Array, bias: Array) -> Array:
    return calls.multiply(x, kernel, bias, kept, layer, transposed=False)


def _reference_product(
    layer: SparseLayer, kept: Array, x: Array, kernel: Array, bias: Array
) -> Array:
    return Reference().product(x, kernel, bias, kept, layer)


def _native_input_gradient(layer: SparseLayer, kept: Array, dy: Array, kernel: Array) -> Array:
    return calls.multiply(dy, kernel, None, kept, layer, transposed=True)


def _reference_input_gradient(layer: SparseLayer, kept: Array, dy: Array, kernel: Array) -> Array:
    return Reference().input_gradient(dy, kernel, kept, layer)


def _layer(*, native_products: bool, native_gradient: bool) -> Way:
    """y, dx, and dW and db."""
    product = _native_product if native_products else _reference_product
    input_gradient = _native_input_gradient if native_products else _reference_input_gradient

    def layer_and_gradients(
        layer: SparseLayer, kept: Array, x: Array, kernel: Array, bias: Array, dy: Array
    ) -> Any:
        if native_gradient:
            gradients = calls.gradient(x, dy, kept, layer, with_bias=True)
        else:
            gradients = Reference().parameter_gradients(x, dy, kept, layer)
        y = product(layer, kept, x, kernel, bias)
        return y, input_gradient(layer, kept, dy, kernel), *gradients

    return layer_and_gradients


def _fused_mlp(
    layer: SparseLayer,
    kept: Array,
    x: Array,
    dy: Array,
    w1: Array,
    b1: Array,
    w2: Array,
    b2: Array,
    *,
    straight_through: bool,
) -> Any:
    layers = _pair(layer)
    weights = (Weights(w1, b1, kept), Weights(w2, b2, kept))
    y = pair_calls.mlp(x, weights, layers, residual=True)
    return y, pair_calls.mlp_gradients(
        x, dy, weights, layers, residual=True, straight_through=straight_through
    )


def _stepwise_mlp(engine: str, backward: Backward) -> Way:
    def pair(layer: SparseLayer, kept: Array, x: Array, dy: Array, *arrays: Array) -> Any:
        masks = [BlockMask(kept, each.kernel_shape, layer.block) for each in _pair(layer)]

        def forward(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
            hidden = gelu(Linear(w1, b1, masks[0], backward)(x, engine=engine))
            return x + Linear(w2, b2, masks[1], backward)(hidden, engine=engine)

        y, pullback = jax.vjp(forward, x, *arrays)
        return y, pullback(dy)

    return pair


def _pair(layer: SparseLayer) -> tuple[SparseLayer, SparseLayer]:
    """The layer and its like from `out` to `in`, the expanding one first."""
    narrow, hidden = sorted(layer.kernel_shape)
    return (
        dataclasses.replace(layer, kernel_shape=(narrow, hidden)),
        dataclasses.replace(layer, kernel_shape=(hidden, narrow)),
    )
