"""Every GPU kernel with the operands that it is compiled for where there is no GPU."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import Mosaic, Neighbours, SparseLayer, Triton

ENGINES = {"triton": Triton(), "mosaic": Mosaic()}
N_IN, N_OUT = 384, 1536


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
    """

    engine: str
    kernel: str
    block: tuple[int, int]
    dtype: Any
    axis: Literal[-1, -2]
    call: Callable[..., Any]
    operands: tuple[jax.ShapeDtypeStruct, ...]

    def __str__(self) -> str:
        (rows, cols), along = self.block, "features" if self.axis == -1 else "tokens"
        name = self.kernel.removeprefix("sparsemlp_")
        return f"{self.engine}-{name}-{rows}x{cols}-{jnp.dtype(self.dtype).name}-{along}"


def case(
    kernel: str,
    block: tuple[int, int],
    dtype: Any,
    axis: Literal[-1, -2],
    engine: str = "triton",
) -> Case:
    """One kernel for a layer 384->1536 of 8192 rows, a fifth of whose blocks is kept."""
    its = ENGINES[engine]
    n_blocks = N_IN * N_OUT // (block[0] * block[1])
    layer = SparseLayer((N_IN, N_OUT), block, n_blocks // 5, axis, jnp.dtype(dtype).name)

    def array(*shape: int, dtype: Any = dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    def rows_of(features: int) -> jax.ShapeDtypeStruct:
        return array(32, 256, features) if axis == -1 else array(32, features, 256)

    x, dy, w, bias = rows_of(N_IN), rows_of(N_OUT), array(N_IN, N_OUT), array(N_OUT)
    kept = array(layer.n_kept, dtype=jnp.int32)
    n_kept = 8192 * N_IN // (block[0] * block[1]) // 5
    values, ids = array(n_kept, *block), array(n_kept, dtype=jnp.int32)

    def ending(method: Callable[..., Any], *rest: Any) -> Callable[..., Any]:
        return lambda *operands: method(*operands, *rest)

    calls = {
        "product": (ending(its.product, layer), (x, w, bias, kept)),
        "transposed": (ending(its.input_gradient, layer), (dy, w, kept)),
        "gradient": (ending(its.kernel_gradient, layer), (x, dy, kept)),
        "compact": (ending(its.compact_gradient, N_IN, axis), (values, ids, dy)),
        "pruned": (ending(its.pruned_input_gradient, Neighbours(*block), axis), (dy, w)),
    }
    return Case(engine, f"sparsemlp_{kernel}", block, dtype, axis, *calls[kernel])


def cases(**blocks: list[tuple[int, int]]) -> list[Case]:
    """For each kernel each of its blocks, in both dtypes, along both axes."""
    return [
        case(kernel, block, dtype, axis)
        for kernel, its in blocks.items()
        for block in its
        for dtype in (jnp.float32, jnp.bfloat16)
        for axis in (-1, -2)
    ]


FEW = cases(
    product=[(32, 16)],
    transposed=[(32, 16)],
    gradient=[(32, 16)],
    compact=[(8, 8)],
    pruned=[(2, 4)],
)
"""Each kernel once."""

SQUARES = [(32, 32), (64, 64), (128, 128)]
MANY = FEW + cases(
    product=SQUARES,
    transposed=SQUARES,
    gradient=SQUARES,
    compact=[(16, 32)],
    pruned=[(1, 8), (16, 32)],
)
"""Each kernel with the blocks that are meant to be used."""

BFLOAT16 = jnp.bfloat16
FEW_OF_MOSAIC = [
    case(kernel, (32, 16), dtype, -1, "mosaic")
    for kernel in ("product", "transposed", "gradient")
    for dtype in (jnp.float32, BFLOAT16)
]
"""Each kernel of engine `mosaic` in both dtypes. Along the tokens they are the same ones."""

MANY_OF_MOSAIC = [
    *FEW_OF_MOSAIC,
    *(
        case(kernel, (side, side), BFLOAT16, -1, "mosaic")
        for kernel in ("product", "transposed", "gradient")
        for side in (32, 128)
    ),
    # Blocks of the most bytes, and rows of a block that become those of the sums of dW.
    case("product", (128, 128), jnp.float32, -1, "mosaic"),
    case("gradient", (128, 128), jnp.float32, -1, "mosaic"),
    case("gradient", (64, 32), BFLOAT16, -1, "mosaic"),
]
"""Each kernel of engine `mosaic` with the blocks that are meant to be used, on Hopper."""
