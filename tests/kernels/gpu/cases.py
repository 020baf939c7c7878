"""Every GPU kernel with the operands that it is compiled for where there is no GPU."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import Mosaic, Neighbours, SparseLayer, Triton, Weights, tuning
from pallas_kernels.mosaic import hidden, hidden_tiles
from pallas_kernels.mosaic.mlp_tiles import APART
from pallas_kernels.triton import mlp_input_gradient, mlp_weight_gradient, pair_tiles

TRITON = Triton()
ENGINES = {"triton": TRITON, "mosaic": Mosaic(), "mosaic-ampere": Mosaic(capability="8.0")}
N_IN, N_OUT = 384, 1536
METHODS = {
    "product": "product",
    "transposed": "input_gradient",
    "gradient": "kernel_gradient",
    "compact": "compact_gradient",
    "pruned": "pruned_input_gradient",
}
"""The methods of the engine, by what a profile calls their kernels."""


class Case(NamedTuple):
    """A product of an engine.

    Attributes:
      engine: its name.
      kernel: what its kernel is called.
      block: of the mask, or of the activation.
      dtype: of the operands.
      axis: the axis of x that is contracted.
      call: the product.
      operands: their shapes and dtypes.
      configuration: how the kernel is cut; None leaves it to its heuristic.
      precision: of products of float32, as JAX calls it.
    """

    engine: str
    kernel: str
    block: tuple[int, int]
    dtype: Any
    axis: Literal[-1, -2]
    call: Callable[..., Any]
    operands: tuple[jax.ShapeDtypeStruct, ...]
    configuration: Any = None
    precision: str | None = None

    def __str__(self) -> str:
        (rows, cols), along = self.block, "features" if self.axis == -1 else "tokens"
        name = self.kernel.removeprefix("sparsemlp_")
        cut = dataclasses.astuple(self.configuration) if self.configuration else ()
        n_in = self.operands[0].shape[self.axis]
        block, dtype = f"{rows}x{cols}", jnp.dtype(self.dtype).name
        words = [self.engine, name, n_in, block, dtype, along, *cut]
        return "-".join(map(str, words if self.precision is None else [*words, self.precision]))

    def traced(self) -> Callable[..., Any]:
        """The product, cut as it is to be."""

        def call(*operands: Any) -> Any:
            with tuning.forced(self.configuration), jax.default_matmul_precision(self.precision):
                return self.call(*operands)

        return call


def case(
    kernel: str,
    block: tuple[int, int],
    dtype: Any,
    axis: Literal[-1, -2],
    configuration: Any = None,
    engine: str = "triton",
    shape: tuple[int, int] = (N_IN, N_OUT),
) -> Case:
    """One kernel for a layer of 8192 rows, a fifth of whose blocks is kept."""
    its, (n_in, n_out) = ENGINES[engine], shape
    n_blocks = n_in * n_out // (block[0] * block[1])
    layer = SparseLayer(shape, block, n_blocks // 5, axis, jnp.dtype(dtype).name)

    def array(*shape: int, dtype: Any = dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    def rows_of(features: int) -> jax.ShapeDtypeStruct:
        return array(32, 256, features) if axis == -1 else array(32, features, 256)

    x, dy, w, bias = rows_of(n_in), rows_of(n_out), array(*shape), array(n_out)
    kept = array(layer.n_kept, dtype=jnp.int32)
    n_kept = 8192 * n_in // (block[0] * block[1]) // 5
    values, ids = array(n_kept, *block), array(n_kept, dtype=jnp.int32)

    def ending(method: Callable[..., Any], *rest: Any) -> Callable[..., Any]:
        return lambda *operands: method(*operands, *rest)

    calls = {
        "product": (ending(its.product, layer), (x, w, bias, kept)),
        "transposed": (ending(its.input_gradient, layer), (dy, w, kept)),
        "gradient": (ending(its.kernel_gradient, layer), (x, dy, kept)),
        "compact": (ending(its.compact_gradient, n_in, axis), (values, ids, dy)),
        "pruned": (ending(its.pruned_input_gradient, Neighbours(*block), axis), (dy, w)),
        "scores": (ending(its.block_scores, block, "l2"), (w,)),
    }
    call, operands = calls[kernel]
    return Case(engine, f"sparsemlp_{kernel}", block, dtype, axis, call, operands, configuration)


def mlp_case(
    kernel: str,
    block: tuple[int, int],
    dtype: Any,
    width: int = N_IN,
    engine: str = "triton",
    configuration: Any = None,
) -> Case:
    """One kernel for two layers of `width`, four times that and `width` features."""
    n_blocks, name = 4 * width**2 // (block[0] * block[1]), jnp.dtype(dtype).name
    shapes = ((width, 4 * width), (4 * width, width))
    first, second = (SparseLayer(shape, block, n_blocks // 5, -1, name) for shape in shapes)
    layers = (first, second)
    x = jax.ShapeDtypeStruct((8192, width), dtype)
    kept = jax.ShapeDtypeStruct((n_blocks // 5,), jnp.int32)
    weights = [
        array
        for shape in shapes
        for array in (*(jax.ShapeDtypeStruct(s, dtype) for s in (shape, shape[1:])), kept)
    ]

    def pair(arrays: tuple[Any, ...]) -> Any:
        return Weights(*arrays[:3]), Weights(*arrays[3:])

    def forward(x: Any, *w: Any) -> Any:
        return ENGINES[engine].mlp(x, pair(w), layers, True)

    def gradient_tiles() -> Any:
        problem = first.problem("triton", TRITON.version, "mlp_gradients", 8192)
        return pair_tiles.gradient_tiles(layers, problem)

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
        "mlp": (forward, [x]),
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


def cases(**blocks: list[tuple[int, int]]) -> list[Case]:
    """For each kernel each of its blocks, in both dtypes, along both axes."""
    return [
        case(kernel, block, dtype, axis)
        for kernel, its in blocks.items()
        for block in its
        for dtype in (jnp.float32, jnp.bfloat16)
        for axis in (-1, -2)
    ]


DTYPES = (jnp.float32, jnp.bfloat16)
THREE = ("product", "transposed", "gradient")
MLP = ("mlp", "mlp_input", "mlp_weights")
SQUARES = [(32, 32), (64, 64), (128, 128)]

FEW = [
    *cases(
        product=[(32, 16)],
        transposed=[(32, 16)],
        gradient=[(32, 16)],
        compact=[(8, 8)],
        pruned=[(2, 4)],
    ),
    *(case("scores", (32, 16), dtype, -1) for dtype in DTYPES),
    *(mlp_case(kernel, (32, 16), dtype) for kernel in MLP for dtype in DTYPES),
]
"""Each kernel once."""

MANY = [
    *FEW,
    *cases(
        product=SQUARES,
        transposed=SQUARES,
        gradient=SQUARES,
        compact=[(16, 32)],
        pruned=[(1, 8), (16, 32)],
    ),
    *(case("scores", block, jnp.float32, -1) for block in SQUARES),
    *(mlp_case(kernel, block, dtype) for kernel in MLP for block in SQUARES for dtype in DTYPES),
    *(
        mlp_case(kernel, (side, side), jnp.bfloat16, 2 * N_IN)
        for kernel in MLP
        for side in (32, 64)
    ),
    # Blocks whose gradients take the most registers, and narrow ones that share warps badly.
    *(mlp_case("mlp_weights", block, jnp.float32) for block in ((64, 128), (128, 64))),
    *(mlp_case("mlp_weights", block, jnp.bfloat16) for block in ((16, 16), (64, 16))),
    # One product after the other.
    *(mlp_case("gelu", (side, side), dtype, 1024) for side in (32, 64, 128) for dtype in DTYPES),
]
"""Each kernel with the blocks that are meant to be used."""

LARGEST = [case(kernel, (128, 128), jnp.float32, axis) for kernel in THREE for axis in (-1, -2)]
"""The most bytes that the loads of a loop hold: they have to fit GPUs of 99 KB."""

IN_FULL = [
    case(kernel, (side, side), jnp.float32, axis)._replace(precision="highest")
    for kernel in THREE
    for side in (64, 128)
    for axis in (-1, -2)
]
"""Float32 that is not multiplied in TF32, which takes the most registers."""

BFLOAT16 = jnp.bfloat16
FEW_OF_MOSAIC = [
    case(kernel, (32, 16), dtype, -1, engine="mosaic")
    for kernel in THREE
    for dtype in (jnp.float32, BFLOAT16)
]
"""Each kernel of engine `mosaic` in both dtypes. Along the tokens they are the same ones."""

MANY_OF_MOSAIC = [
    *FEW_OF_MOSAIC,
    *(
        case(kernel, (side, side), BFLOAT16, -1, engine="mosaic")
        for kernel in THREE
        for side in (32, 128)
    ),
    # Blocks of the most bytes, and rows of a block that become those of the sums of dW.
    case("product", (128, 128), jnp.float32, -1, engine="mosaic"),
    case("gradient", (128, 128), jnp.float32, -1, engine="mosaic"),
    *(case(kernel, (64, 64), BFLOAT16, -1, engine="mosaic") for kernel in THREE),
    case("gradient", (64, 32), BFLOAT16, -1, engine="mosaic"),
    # Panels that do not fit, and those that leave the least of shared memory.
    *(
        case(kernel, (side, side), BFLOAT16, -1, engine="mosaic", shape=(1024, 4096))
        for kernel in THREE
        for side in (32, 64, 128)
    ),
    *(
        mlp_case("gelu", (side, side), dtype, engine="mosaic", configuration=APART)
        for side, dtype in ((32, BFLOAT16), (128, BFLOAT16), (128, jnp.float32))
    ),
    # The sums of all outputs in the registers of two warpgroups, those of few in one's.
    *(
        fused_case("mlp", (side, side), dtype, width)
        for side, dtype, width in (
            (32, BFLOAT16, N_IN),
            (64, BFLOAT16, N_IN),
            (32, jnp.float32, N_IN),
            (32, BFLOAT16, 64),
            (16, jnp.float32, 64),
            (64, BFLOAT16, 256),
            (128, BFLOAT16, 256),
        )
    ),
    # Two sums a column, whole panels and panels in pieces.
    *(
        fused_case("hidden", (side, side), dtype, width)
        for side, dtype, width in (
            (32, BFLOAT16, N_IN),
            (64, BFLOAT16, N_IN),
            (64, jnp.float32, N_IN),
            (16, jnp.float32, 64),
            (64, BFLOAT16, 2 * N_IN),
        )
    ),
]
"""Each kernel of engine `mosaic` with the blocks that are meant to be used, on Hopper."""

FEW_OF_AMPERE = [case(kernel, (32, 16), BFLOAT16, -1, engine="mosaic-ampere") for kernel in THREE]
"""Each kernel of engine `mosaic` for Ampere."""

MANY_OF_AMPERE = [
    *FEW_OF_AMPERE,
    *(
        case(kernel, block, BFLOAT16, -1, engine="mosaic-ampere")
        for kernel in THREE
        for block in ((16, 32), (32, 32), (64, 64), (128, 128), (16, 128), (128, 16))
    ),
    *(mlp_case("gelu", (side, side), BFLOAT16, engine="mosaic-ampere") for side in (32, 128)),
]
"""Each of them with the blocks that are meant to be used, panels that stay and panels that come
along with the weights."""
