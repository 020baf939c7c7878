"""`y = x (W * M) + b` and `dx = dy (W * M)^T` on Ampere, in bfloat16."""

import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.lists import KeptBlocks, list_columns, list_rows
from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.ampere import Instructions, shared
from pallas_kernels.mosaic.ampere_product_program import Program, Walk
from pallas_kernels.mosaic.ampere_product_tiles import Tiles, tiles_of
from pallas_kernels.sparse_layer import SparseLayer

PROGRAMS = 432
"""How many programs there are at least, if there is work: four for each multiprocessor of an A100.
Not tuned yet."""


@functools.partial(
    jax.jit, static_argnames=("layer", "transposed", "interpret", "with_gelu", "memory_bytes")
)
def multiply(
    x: Float[Array, "rows n"],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    kept: KeptBlocks,
    layer: SparseLayer,
    *,
    transposed: bool,
    interpret: bool,
    with_gelu: bool = False,
    memory_bytes: int,
) -> Float[Array, "rows m"]:
    """`x (W * M) + b`, GELU of it, or with `transposed` `x (W * M)^T`.

    Args:
      x: `[rows, n]`; n is `in`, or `out` if transposed.
      kernel: the whole kernel, of which the kept blocks are read.
      bias: `[out]`, or None; not with `transposed`.
      kept: the kept blocks.
      layer: the layer, bfloat16, without regard to its axis.
      transposed: which of the two products.
      interpret: whether the kernel is interpreted.
      with_gelu: whether it is GELU of the sums that is written.
      memory_bytes: of shared memory.
    """
    (n_in, n_out), (rows, cols) = layer.kernel_shape, layer.block
    width, depth = (cols, rows) if transposed else (rows, cols)
    n_result, n_blocks = (n_in, n_out // depth) if transposed else (n_out, n_in // depth)
    lists = (list_rows if transposed else list_columns)(kept, layer.grid_shape)
    n_rows = x.shape[0]
    tiles = tiles_of(width, depth, n_blocks, n_rows, memory_bytes)
    assert tiles is not None, f"blocks {width}x{depth} do not fit {memory_bytes} bytes"
    x = launch.padded(x, tiles.rows)
    n_tiles = x.shape[0] // tiles.rows
    n_shares = min(n_result // width, pl.cdiv(PROGRAMS, n_tiles))
    parts = n_blocks if tiles.is_resident else tiles.stages
    tile = (width, depth) if transposed else (depth, width)
    y = launch.launch(
        launch.product_name(transposed=transposed, with_gelu=with_gelu),
        functools.partial(
            _kernel,
            tiles=tiles,
            transposed=transposed,
            n_shares=n_shares,
            has_bias=bias is not None,
            with_gelu=with_gelu,
            do=Instructions(interpret),
        ),
        [lists.start, lists.across, lists.order, x, kernel, *([] if bias is None else [bias])],
        grid=(n_shares * n_tiles,),
        out=jax.ShapeDtypeStruct((x.shape[0], n_result), x.dtype),
        scratch={
            "panel": shared(parts, tiles.rows, depth, dtype=x.dtype),
            "ring": shared(tiles.stages, *tile, dtype=x.dtype),
            "staging": shared(tiles.rows, width, dtype=x.dtype),
        },
        n_warpgroups=1,
        interpret=interpret,
    )
    return y[:n_rows]


def _kernel(
    start: Any,
    across: Any,
    order: Any,
    x: Any,
    kernel: Any,
    *rest: Any,
    tiles: Tiles,
    transposed: bool,
    n_shares: int,
    has_bias: bool,
    with_gelu: bool,
    do: Instructions,
    panel: Any,
    ring: Any,
    staging: Any,
) -> None:
    *bias, y = rest
    tile, share = launch.place(n_shares)
    Program(
        walk=Walk(start, across, order, share, n_shares),
        tiles=tiles,
        do=do,
        panel=panel,
        ring=ring,
        staging=staging,
        x=x,
        kernel=kernel,
        bias=bias[0] if has_bias else None,
        y=y,
        first_row=tile * tiles.rows,
        turned=transposed,
        with_gelu=with_gelu,
    ).run()
