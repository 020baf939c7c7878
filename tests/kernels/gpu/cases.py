"""GPU kernels of one layer with the operands that they are compiled for where there is no GPU."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import Mosaic, Neighbours, SparseLayer, Triton, tuning
from pallas_kernels.lists import ListedBlocks, listed
from pallas_kernels.mosaic import products
from pallas_kernels.mosaic.gradient_cost import by_cost
from pallas_kernels.mosaic.gradient_tiles import DENSE
from pallas_kernels.mosaic.product_tiles import product_of
from pallas_kernels.mosaic.stream_tiles import tiles_of

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
      operands: their shapes and dtypes, kept blocks with their lists: these are not compiled then.
      configuration: how the kernel is cut; None leaves it to its heuristic.
      precision: of products of float32, as JAX calls it.
    """

    engine: str
    kernel: str
    block: tuple[int, int]
    dtype: Any
    axis: Literal[-1, -2]
    call: Callable[..., Any]
    operands: tuple[Any, ...]
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


def kept_of(layer: SparseLayer) -> ListedBlocks:
    """The shapes of the kept blocks of a layer with their lists."""
    return _kept_of(layer.kernel_shape, layer.block, layer.n_kept)


@functools.cache
def _kept_of(shape: tuple[int, int], block: tuple[int, int], n_kept: int) -> ListedBlocks:
    (n_in, n_out), (rows, cols) = shape, block
    ids = jax.ShapeDtypeStruct((n_kept,), jnp.int32)
    make = functools.partial(listed, grid_shape=(n_in // cols, n_out // rows))
    return jax.eval_shape(make, ids)


def case(
    kernel: str,
    block: tuple[int, int],
    dtype: Any,
    axis: Literal[-1, -2],
    configuration: Any = None,
    engine: str = "triton",
    shape: tuple[int, int] = (N_IN, N_OUT),
) -> Case:
    """One kernel for a layer of 8192 rows, a fifth of whose blocks is kept.

    A gradient that engine `mosaic` leaves to XLA is that of its best kernel; one that is balanced
    has db beside it.
    """
    its, (n_in, n_out) = ENGINES[engine], shape
    n_blocks = n_in * n_out // (block[0] * block[1])
    layer = SparseLayer(shape, block, n_blocks // 5, axis, jnp.dtype(dtype).name)

    def array(*shape: int, dtype: Any = dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    def rows_of(features: int) -> jax.ShapeDtypeStruct:
        return array(32, 256, features) if axis == -1 else array(32, features, 256)

    x, dy, w, bias = rows_of(n_in), rows_of(n_out), array(*shape), array(n_out)
    kept = kept_of(layer)
    n_kept = 8192 * n_in // (block[0] * block[1]) // 5
    values, ids = array(n_kept, *block), array(n_kept, dtype=jnp.int32)

    def ending(method: Callable[..., Any], *rest: Any) -> Callable[..., Any]:
        return lambda *operands: method(*operands, *rest)

    is_balanced = getattr(configuration, "balanced", False)
    gradient = its.parameter_gradients if is_balanced else its.kernel_gradient
    calls = {
        "product": (ending(its.product, layer), (x, w, bias, kept)),
        "transposed": (ending(its.input_gradient, layer), (dy, w, kept)),
        "gradient": (ending(gradient, layer), (x, dy, kept)),
        "compact": (ending(its.compact_gradient, n_in, axis), (values, ids, dy)),
        "pruned": (ending(its.pruned_input_gradient, Neighbours(*block), axis), (dy, w)),
        "scores": (ending(its.block_scores, block, "l2"), (w,)),
    }
    if kernel == "through_gelu":
        calls[kernel] = _through_gelu(layer, dy, w, x, kept)
    if kernel == "gradient" and engine == "mosaic" and configuration is None:
        configuration = next(c for c in by_cost(layer, 8192) if c != DENSE)
    call, operands = calls[kernel]
    name = f"sparsemlp_balanced_{kernel}" if is_balanced else f"sparsemlp_{kernel}"
    return Case(engine, name, block, dtype, axis, call, operands, configuration)


def _through_gelu(
    layer: SparseLayer, dy: Any, w: Any, units: Any, kept: Any
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The second of two products of engine `mosaic`, with GELU, of rows of features."""
    dy, units = (jax.ShapeDtypeStruct((8192, a.shape[-1]), a.dtype) for a in (dy, units))
    tiles = tiles_of(product_of(layer, 8192, transposed=True))

    def call(dy: Any, w: Any, units: Any, kept: Any) -> Any:
        return products.through_gelu(dy, w, units, kept, layer, tiles, interpret=False)

    return call, (dy, w, units, kept)


def cases(**blocks: list[tuple[int, int]]) -> list[Case]:
    """For each kernel each of its blocks, in both dtypes, along both axes."""
    return [
        case(kernel, block, dtype, axis)
        for kernel, its in blocks.items()
        for block in its
        for dtype in (jnp.float32, jnp.bfloat16)
        for axis in (-1, -2)
    ]
