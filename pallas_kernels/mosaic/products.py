"""`y = x (W * M) + b` and `dx = dy (W * M)^T`: a dense operand times a block-sparse one.

Here they are cut and launched; `product_program` tells what runs on the GPU.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.lists import KeptBlocks, listed
from pallas_kernels.mosaic import launch, warpgroup
from pallas_kernels.mosaic.product_copies import Copying
from pallas_kernels.mosaic.product_program import Memory
from pallas_kernels.mosaic.product_share import Share
from pallas_kernels.mosaic.product_sums import Summing
from pallas_kernels.mosaic.product_tiles import (
    ROWS,
    Tiles,
    needed_blocks,
    product_of,
    steps_of_ranks,
)
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
    tiles: Tiles,
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
    (n_in, n_out), (rows, cols) = layer.kernel_shape, layer.block
    product = product_of(layer, x.shape[0], transposed=transposed)
    width, depth, n_result = product.width, product.depth, product.n_lines * product.width
    blocks = listed(kept, (n_in // cols, n_out // rows))
    lists = blocks.rows if transposed else blocks.columns
    is_wide = jnp.dtype(layer.dtype).itemsize == 4
    if is_wide and not transposed:
        kernel = kernel.T
    turned = transposed or is_wide
    x = launch.padded(x, launch.TILE_ROWS)
    contiguous = min(32 if is_wide else 64, depth, depth if turned else width)
    n_shares, n_tiles = tiles.n_shares(product), tiles.n_tiles(product)
    buffers = 1 if tiles.pieces == 1 else 2

    def shared(*shape: int, contiguous: int = contiguous) -> Any:
        return launch.shared(shape, layer.dtype, contiguous)

    y = launch.launch(
        launch.product_name(transposed=transposed, with_gelu=with_gelu),
        functools.partial(
            _kernel,
            tiles=tiles,
            width=width,
            depth=depth,
            turned=turned,
            n_shares=n_shares,
            has_bias=bias is not None,
            with_gelu=with_gelu,
        ),
        [
            blocks.which,
            lists.before,
            jax.vmap(functools.partial(needed_blocks, tiles=tiles))(lists, order=lists.order),
            jax.vmap(functools.partial(steps_of_ranks, tiles=tiles))(lists, order=lists.order),
            lists.across,
            lists.order,
            x,
            kernel,
            *([] if bias is None else [bias]),
        ],
        grid=(n_shares * n_tiles // tiles.cluster,),
        cluster=tiles.cluster,
        out=jax.ShapeDtypeStruct((x.shape[0], n_result), x.dtype),
        scratch={
            "panel": shared(buffers, tiles.blocks, tiles.rows, depth),
            "ring": shared(
                tiles.stages, tiles.abreast, *((width, depth) if turned else (depth, width))
            ),
            "staging": shared(
                tiles.n_compute, ROWS, width, contiguous=min(32 if is_wide else 64, width)
            ),
            "panel_full": launch.barriers(buffers, arrivals=tiles.blocks),
            "panel_free": launch.barriers(buffers, arrivals=tiles.n_compute),
            "ring_full": launch.barriers(tiles.stages, arrivals=tiles.abreast),
            "ring_free": launch.barriers(
                tiles.stages, arrivals=tiles.n_compute, cluster=tiles.cluster
            ),
        },
        n_warpgroups=tiles.n_compute + 1,
        interpret=interpret,
    )
    return y[: product.n_rows]


def _kernel(
    which: Any,
    before: Any,
    needed: Any,
    steps: Any,
    across: Any,
    order: Any,
    x: Any,
    kernel: Any,
    *rest: Any,
    tiles: Tiles,
    width: int,
    depth: int,
    turned: bool,
    n_shares: int,
    has_bias: bool,
    with_gelu: bool,
    **memory: Any,
) -> None:
    *bias, y = rest
    tile, share = launch.place(n_shares, tiles.cluster)
    table = functools.partial(warpgroup.Table, which=warpgroup.read(which, 0))
    program: dict[str, Any] = {
        "share": Share(
            before=table(before),
            needed=table(needed),
            steps=table(steps),
            across=table(across),
            order=table(order),
            ends=None,
            tiles=tiles,
            n_columns=order.shape[1],
            number=share,
            n_shares=n_shares,
        ),
        "memory": Memory(**memory),
        "x": x,
        "kernel": kernel,
        "bias": bias[0] if has_bias else None,
        "y": y,
        "first_row": tile * tiles.rows,
        "width": width,
        "depth": depth,
        "turned": turned,
        "with_gelu": with_gelu,
    }
    launch.specialise(tiles.n_compute, Copying(**program).copy, Summing(**program).multiply)
