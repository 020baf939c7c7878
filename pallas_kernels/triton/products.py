"""`y = x (W * M) + b` and `dx = dy (W * M)^T`: a dense operand times a block-sparse one.

A program owns some rows of the result and one block of its features. It walks the kept blocks that
meet it, reads those blocks of the kernel where they lie, and writes its part once; a block that is
dropped is never loaded. Longest lists run first.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.gelu import gelu
from pallas_kernels.lists import KeptBlocks, list_columns, list_rows
from pallas_kernels.sparse_layer import SparseLayer
from pallas_kernels.triton.configurations import VERSION, product_tiles
from pallas_kernels.triton.launch import (
    dot,
    indices,
    launch,
    load,
    store,
    tile_size,
    whole,
)
from pallas_kernels.tuning import configure


def multiply(
    x: Float[Array, "..."],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    kept: KeptBlocks,
    layer: SparseLayer,
    *,
    transposed: bool = False,
    with_gelu: bool = False,
    interpret: bool,
) -> Float[Array, "..."]:
    """`x (W * M) + b`, or with `transposed` `x (W * M)^T`, along the axis of the layer.

    Args:
      x: `[..., n]`, or `[..., n, channels]` along the tokens; n is `in`, or `out` if transposed.
      kernel: the whole kernel, of which the kept blocks are read.
      bias: `[out]`, or None; not with `transposed`.
      kept: the kept blocks.
      layer: the layer.
      transposed: which of the two products.
      with_gelu: whether GELU of the result is written.
      interpret: whether the kernel is interpreted.
    """
    n_in, n_out = layer.kernel_shape
    grid_shape = layer.grid_shape
    lists = (list_rows if transposed else list_columns)(kept, grid_shape)
    n_result = n_in if transposed else n_out
    along_features = layer.axis == -1
    lengths = x.shape[:-1] if along_features else (*x.shape[:-2], x.shape[-1])
    # One sample of all rows, or samples of channels: [sample, n, rest] in either case.
    x = x.reshape(1, -1, x.shape[-1]) if along_features else x.reshape(-1, *x.shape[-2:])
    n_rows = x.shape[1 if along_features else 2]
    method = "input_gradient" if transposed else "product"
    problem = layer.problem("triton", VERSION, method, x.size // max(1, x.shape[layer.axis]))
    tiles = configure(problem, product_tiles(layer))
    size = tile_size(n_rows, tiles.rows)

    def panel(features: int) -> pl.BlockSpec:
        if along_features:
            return pl.BlockSpec((None, size, features), lambda line, tile, sample: (0, tile, 0))
        return pl.BlockSpec((None, features, size), lambda line, tile, sample: (sample, 0, tile))

    body = functools.partial(
        _kernel,
        layer=layer,
        transposed=transposed,
        n_rows=n_rows,
        has_bias=bias is not None,
        with_gelu=with_gelu,
    )
    operands = [lists.start, lists.across, lists.order, x, kernel]
    shape = (1, n_rows, n_result) if along_features else (x.shape[0], n_result, n_rows)
    name = "transposed" if transposed else "gelu" if with_gelu else "product"
    y = launch(
        f"sparsemlp_{name}",
        body,
        operands if bias is None else [*operands, bias],
        grid=(lists.order.size, pl.cdiv(n_rows, size), x.shape[0]),
        in_specs=[
            *map(whole, operands[:3]),
            panel(n_out if transposed else n_in),
            whole(kernel),
            *([] if bias is None else [whole(bias)]),
        ],
        out_spec=panel(n_result),
        out=jax.ShapeDtypeStruct(shape, x.dtype),
        tiles=tiles,
        interpret=interpret,
    )
    if along_features:
        return y.reshape(*lengths, n_result)
    return y.reshape(*lengths[:-1], n_result, n_rows)


def _kernel(
    start: Any,
    across: Any,
    order: Any,
    x: Any,
    kernel: Any,
    *rest: Any,
    layer: SparseLayer,
    transposed: bool,
    n_rows: int,
    has_bias: bool,
    with_gelu: bool,
) -> None:
    *bias, y = rest
    rows, cols = layer.block
    along_features = layer.axis == -1
    size = x.shape[0 if along_features else 1]
    width, depth = (cols, rows) if transposed else (rows, cols)
    line = order[pl.program_id(0)]
    mine = pl.program_id(1) * size + indices(size) < n_rows

    def part(ref: Any, first: Any, features: int) -> tuple[Any, Array]:
        """Some features of this program's rows, and which of them exist."""
        features_ = pl.ds(first, features)
        if along_features:
            return ref.at[:, features_], jnp.broadcast_to(mine[:, None], (size, features))
        return ref.at[features_, :], jnp.broadcast_to(mine[None, :], (features, size))

    def add(entry: Array, total: Array) -> Array:
        other = across[entry]
        tile = load(*part(x, other * depth, depth))
        if transposed:
            weights = load(kernel.at[pl.ds(line * cols, cols), pl.ds(other * rows, rows)])
            product = dot(tile, weights, (1, 1)) if along_features else dot(weights, tile, (1, 0))
        else:
            weights = load(kernel.at[pl.ds(other * cols, cols), pl.ds(line * rows, rows)])
            product = dot(tile, weights, (1, 0)) if along_features else dot(weights, tile, (0, 0))
        return total + product

    shape = (size, width) if along_features else (width, size)
    total = jax.lax.fori_loop(start[line], start[line + 1], add, jnp.zeros(shape, jnp.float32))
    if has_bias:
        shift = bias[0][pl.ds(line * width, width)].astype(jnp.float32)
        total = total + (shift[None, :] if along_features else shift[:, None])
    if with_gelu:
        total, _ = gelu(total)
    ref, mask = part(y, line * width, width)
    store(ref, total, mask)
