"""`y = x (W * M) + b` and `dx = dy (W * M)^T`: a dense operand times a block-sparse one.

Here they are cut and launched; `stream_program` tells what runs on the GPU.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.lists import KeptBlocks, listed
from pallas_kernels.mosaic import launch, warpgroup
from pallas_kernels.mosaic.product_tiles import ROWS, product_of
from pallas_kernels.mosaic.stream_program import Memory, Program
from pallas_kernels.mosaic.stream_tiles import (
    StreamTiles,
    n_staged,
    step_depth,
    with_hidden_units,
)
from pallas_kernels.mosaic.stream_walk import CACHED_BYTES, Walk
from pallas_kernels.sparse_layer import SparseLayer


@functools.partial(
    jax.jit, static_argnames=("layer", "tiles", "transposed", "interpret", "with_gelu")
)
def multiply(
    x: Float[Array, "rows n"],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    kept: KeptBlocks,
    layer: SparseLayer,
    tiles: StreamTiles,
    *,
    transposed: bool,
    interpret: bool,
    with_gelu: bool = False,
) -> Float[Array, "rows m"]:
    """`x (W * M) + b`, GELU of it, or with `transposed` `x (W * M)^T`.

    Tensor cores read float32 along the contracted features alone: there XLA transposes the kernel
    for the first product. It is compiled apart: layers that are alike are lowered once.

    Args:
      x: `[rows, n]`; n is `in`, or `out` if transposed.
      kernel: the whole kernel, of which the kept blocks are read.
      bias: `[out]`, or None; not with `transposed`.
      kept: the kept blocks.
      layer: the layer, without regard to its axis.
      tiles: how the product is cut.
      transposed: which of the two products.
      interpret: whether the kernel is interpreted.
      with_gelu: whether it is GELU of the sums that is written.
    """
    (y,) = _multiply(
        x,
        kernel,
        bias,
        None,
        kept,
        layer,
        tiles,
        transposed=transposed,
        interpret=interpret,
        with_gelu=with_gelu,
    )
    return y


@functools.partial(jax.jit, static_argnames=("layer", "tiles", "interpret"))
def through_gelu(
    dy: Float[Array, "rows out"],
    kernel: Float[Array, "in out"],
    before: Float[Array, "rows in"],
    kept: KeptBlocks,
    layer: SparseLayer,
    tiles: StreamTiles,
    *,
    interpret: bool,
) -> tuple[Float[Array, "rows in"], Float[Array, "rows in"]]:
    """Hidden units after GELU, and `dy (W * M)^T gelu'(h)`, the gradient before it.

    Args:
      dy: the gradient of the result of the layer that follows GELU.
      kernel: of that layer.
      before: h, the hidden units before GELU.
      kept: the kept blocks.
      layer: the layer, without regard to its axis.
      tiles: how its input gradient is cut.
      interpret: whether the kernel is interpreted.
    """
    product = product_of(layer, dy.shape[0], transposed=True)
    tiles = with_hidden_units(product, tiles)
    gradient, units = _multiply(
        dy, kernel, None, before, kept, layer, tiles, transposed=True, interpret=interpret
    )
    return units, gradient


def _multiply(
    x: Array,
    kernel: Array,
    bias: Array | None,
    before: Array | None,
    kept: KeptBlocks,
    layer: SparseLayer,
    tiles: StreamTiles,
    *,
    transposed: bool,
    interpret: bool,
    with_gelu: bool = False,
) -> list[Array]:
    product = product_of(layer, x.shape[0], transposed=transposed)
    width, depth, n_result = product.width, product.depth, product.n_lines * product.width
    blocks = listed(kept, layer.grid_shape)
    lists = blocks.rows if transposed else blocks.columns
    is_wide = jnp.dtype(layer.dtype).itemsize == 4
    if is_wide and not transposed:
        kernel = kernel.T
    turned = transposed or is_wide
    x = launch.padded(x, launch.TILE_ROWS)
    step, n_programs = step_depth(depth, layer.dtype), tiles.n_programs(product)
    contiguous = min(32 if is_wide else 64, step, step if turned else width)

    def shared(*shape: int, contiguous: int = contiguous) -> Any:
        return launch.shared(shape, layer.dtype, contiguous)

    n_results = 1 if before is None else 2
    extra = [a for a in (bias, before) if a is not None]
    extra = extra if before is None else [launch.padded(before, launch.TILE_ROWS)]
    result = jax.ShapeDtypeStruct((x.shape[0], n_result), x.dtype)
    each = n_staged(tiles, through_gelu=before is not None)
    n_all = tiles.n_compute * each
    staged = {} if before is None else {"staged": launch.barriers(n_all, arrivals=1)}
    found = launch.launch(
        "sparsemlp_through_gelu"
        if before is not None
        else launch.product_name(transposed=transposed, with_gelu=with_gelu),
        functools.partial(
            _kernel,
            tiles=tiles,
            n_programs=n_programs,
            n_lines=product.n_lines,
            n_row_tiles=tiles.n_row_tiles(product.n_rows),
            longest_first=x.size * x.dtype.itemsize <= CACHED_BYTES,
            width=width,
            depth=depth,
            step=step,
            n_staged=each,
            turned=turned,
            has_bias=bias is not None,
            has_units=before is not None,
            with_gelu=with_gelu,
        ),
        [
            blocks.which,
            lists.start,
            lists.order,
            lists.across,
            x,
            kernel,
            *extra,
        ],
        grid=(n_programs,),
        out=(result,) * n_results,
        scratch={
            "left": shared(tiles.stages, tiles.rows, step),
            "right": shared(tiles.stages, *((width, step) if turned else (step, width))),
            "staging": shared(n_all, ROWS, width, contiguous=min(32 if is_wide else 64, width)),
            **staged,
            "full": launch.barriers(tiles.teams * tiles.stages, arrivals=2),
            "free": launch.barriers(tiles.stages, arrivals=tiles.n_compute // tiles.teams),
        },
        n_warpgroups=tiles.n_compute + 1,
        interpret=interpret,
    )
    return [a[: product.n_rows] for a in found]


def _kernel(
    which: Any,
    start: Any,
    order: Any,
    across: Any,
    x: Any,
    kernel: Any,
    *rest: Any,
    tiles: StreamTiles,
    n_programs: int,
    n_lines: int,
    n_row_tiles: int,
    longest_first: bool,
    has_bias: bool,
    has_units: bool,
    left: Any,
    right: Any,
    staging: Any,
    full: Any,
    free: Any,
    staged: Any = None,
    **cut: Any,
) -> None:
    given = list(rest)
    bias = given.pop(0) if has_bias else None
    before = given.pop(0) if has_units else None
    y, units = (*given, None)[:2]
    table = functools.partial(warpgroup.Table, which=warpgroup.read(which, 0))
    walk = Walk(
        start=table(start),
        order=table(order),
        across=table(across),
        number=jax.lax.axis_index(launch.X),
        n_programs=n_programs,
        n_lines=n_lines,
        n_row_tiles=n_row_tiles,
        longest_first=longest_first,
    )
    program = Program(
        tiles=tiles,
        memory=Memory(left, right, staging, full, free, staged),
        walk=walk,
        x=x,
        kernel=kernel,
        bias=bias,
        y=y,
        before=before,
        units=units,
        **cut,
    )
    launch.specialise(tiles.n_compute, program.copy, program.multiply)
