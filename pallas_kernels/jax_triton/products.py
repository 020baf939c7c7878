"""`y = x (W * M) + b` and `dx = dy (W * M)^T`, as `pallas_kernels.triton.products` has them.

A program owns some rows of the result and one block of its features, and walks the kept blocks that
meet it, longest lists first. Strides tell the axes apart, so one kernel serves all four products.
"""

import inspect
import math

import jax
from jaxtyping import Array, Float

from pallas_kernels.lists import KeptBlocks, list_columns, list_rows
from pallas_kernels.precision import PRECISIONS
from pallas_kernels.sparse_layer import SparseLayer
from pallas_kernels.triton.configurations import VERSION, product_tiles
from pallas_kernels.triton.launch import Tiles, tile_size
from pallas_kernels.tuning import configure

NAME = "jax-triton"


def multiply(
    x: Float[Array, "..."],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    kept: KeptBlocks,
    layer: SparseLayer,
    *,
    transposed: bool,
    compute_capability: int | None = None,
) -> Float[Array, "..."]:
    """`x (W * M) + b`, or with `transposed` `x (W * M)^T`, along the axis of the layer.

    Args:
      x: `[..., n]`, or `[..., n, channels]` along the tokens; n is `in`, or `out` if transposed.
      kernel: the whole kernel, of which the kept blocks are read.
      bias: `[out]`, or None; not with `transposed`.
      kept: the kept blocks.
      layer: the layer.
      transposed: which of the two products.
      compute_capability: of the GPU, as 80 or 90; None for that of the device at hand.
    """
    from jax_triton import triton_call as call_triton  # pyright: ignore

    from pallas_kernels.jax_triton.multiply import multiply as kernel_of_products

    n_in, n_out = layer.kernel_shape
    lists = (list_rows if transposed else list_columns)(kept, layer.grid_shape)
    along_features = layer.axis == -1
    n_y = n_in if transposed else n_out
    shape = (*x.shape[:-1], n_y) if along_features else (*x.shape[:-2], n_y, x.shape[-1])
    method = "input_gradient" if transposed else "product"
    n_rows = x.size // max(1, x.shape[layer.axis])
    tiles = configure(layer.problem(NAME, VERSION, method, n_rows), product_tiles(layer))
    constants, n_programs = plan(x.shape, layer, tiles, transposed=transposed)

    # The name that jax-triton has for it since 0.4, and before.
    has_new_name = "out_type" in inspect.signature(call_triton).parameters
    result = "out_type" if has_new_name else "out_shape"

    # jax-triton has no rule for vmap.
    @jax.custom_batching.sequential_vmap
    def call(*operands: Array) -> Array:
        return call_triton(
            *operands,
            kernel=kernel_of_products,
            **{result: jax.ShapeDtypeStruct(shape, x.dtype)},
            grid=(n_programs,),
            name="sparsemlp_transposed" if transposed else "sparsemlp_product",
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            compute_capability=compute_capability,
            has_bias=bias is not None,
            # Of bfloat16 Triton does not ask.
            precision=PRECISIONS.get(jax.config.jax_default_matmul_precision, "tf32"),
            **constants,
        )

    return call(lists.start, lists.across, lists.order, x, kernel, kernel if bias is None else bias)


def plan(
    shape: tuple[int, ...], layer: SparseLayer, tiles: Tiles, *, transposed: bool
) -> tuple[dict[str, int], int]:
    """The constants of the kernel that follow from shapes, and the number of programs.

    Args:
      shape: of x.
      layer: the layer.
      tiles: how the product is cut.
      transposed: which of the two products.
    """
    (n_in, n_out), (rows, cols) = layer.kernel_shape, layer.block
    n_x, n_y = (n_out, n_in) if transposed else (n_in, n_out)
    width, depth = (cols, rows) if transposed else (rows, cols)
    if layer.axis == -1:
        n_samples, n_rows = 1, math.prod(shape) // n_x
        strides = {"x_sample": 0, "x_row": n_x, "x_feature": 1}
        strides |= {"y_sample": 0, "y_row": n_y, "y_feature": 1}
    else:
        n_rows = shape[-1]
        n_samples = math.prod(shape) // (n_x * n_rows)
        strides = {"x_sample": n_x * n_rows, "x_row": 1, "x_feature": n_rows}
        strides |= {"y_sample": n_y * n_rows, "y_row": 1, "y_feature": n_rows}
    size = tile_size(n_rows, tiles.rows)
    n_lines, n_tiles = n_y // width, -(-n_rows // size)
    constants = {
        **strides,
        "n_lines": n_lines,
        "n_tiles": n_tiles,
        "n_rows": n_rows,
        "kernel_depth": 1 if transposed else n_out,
        "kernel_width": n_out if transposed else 1,
        "size": size,
        "depth": depth,
        "width": width,
    }
    return constants, n_lines * n_tiles * n_samples
