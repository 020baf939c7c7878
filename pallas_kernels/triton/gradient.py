"""`dW = (x^T dy) * M`: a product of two dense operands of which only the kept blocks are computed.

A program owns one kept block and a share of the rows; the shares are summed in a fixed order, so
results are the same in every run.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.layout import spread_gradient
from pallas_kernels.lists import KeptBlocks, ids_of
from pallas_kernels.sparse_layer import SparseLayer
from pallas_kernels.triton.configurations import VERSION, gradient_tiles
from pallas_kernels.triton.launch import (
    dot,
    indices,
    launch,
    load,
    quotient_and_rest,
    tile_size,
)
from pallas_kernels.tuning import configure


def kernel_gradient(
    x: Float[Array, "..."],
    dy: Float[Array, "..."],
    kept: KeptBlocks,
    layer: SparseLayer,
    *,
    interpret: bool,
) -> Float[Array, "in out"]:
    """`dW`, exactly zero in dropped blocks.

    Args:
      x: `[..., in]`, or `[..., in, channels]` along the tokens.
      dy: likewise, of the outputs.
      kept: the kept blocks.
      layer: the layer.
      interpret: whether the kernel is interpreted.
    """
    rows, cols = layer.block
    along_features = layer.axis == -1
    x, dy = (
        a.reshape(1, -1, a.shape[-1]) if along_features else a.reshape(-1, *a.shape[-2:])
        for a in (x, dy)
    )
    n_samples, n_rows = x.shape[0], x.shape[1 if along_features else 2]
    problem = layer.problem("triton", VERSION, "kernel_gradient", n_samples * n_rows)
    tiles = configure(problem, gradient_tiles(layer))
    size = tile_size(n_rows, tiles.rows)
    n_tiles = n_samples * pl.cdiv(n_rows, size)
    per_program = pl.cdiv(n_tiles, min(n_tiles, pl.cdiv(tiles.programs, kept.size)))
    n_shares = pl.cdiv(n_tiles, per_program)
    # Along the features a share is some rows; along the tokens some samples with all channels.
    if along_features:
        samples, length = 1, per_program * size
    else:
        samples = pl.cdiv(n_samples, min(n_samples, n_shares))
        n_shares = pl.cdiv(n_samples, samples)
        length = pl.cdiv(n_rows, size) * size

    def share(features: int) -> pl.BlockSpec:
        if along_features:
            return pl.BlockSpec((1, length, features), lambda block, share: (0, share, 0))
        return pl.BlockSpec((samples, features, length), lambda block, share: (share, 0, 0))

    parts = launch(
        "sparsemlp_gradient",
        functools.partial(_kernel, layer=layer, n_samples=n_samples, n_rows=n_rows, size=size),
        [ids_of(kept), x, dy],
        grid=(kept.size, n_shares),
        in_specs=[
            pl.BlockSpec((kept.size,), lambda *_: (0,)),
            share(layer.kernel_shape[0]),
            share(layer.kernel_shape[1]),
        ],
        out_spec=pl.BlockSpec((None, None, cols, rows), lambda block, share: (share, block, 0, 0)),
        out=jax.ShapeDtypeStruct((n_shares, kept.size, cols, rows), jnp.float32),
        tiles=tiles,
        interpret=interpret,
    )
    blocks = jnp.sum(parts, axis=0).astype(x.dtype)
    return spread_gradient(blocks, kept, layer.kernel_shape)


def _kernel(
    kept: Any,
    x: Any,
    dy: Any,
    dw: Any,
    *,
    layer: SparseLayer,
    n_samples: int,
    n_rows: int,
    size: int,
) -> None:
    rows, cols = layer.block
    along_features = layer.axis == -1
    share = pl.program_id(1)
    block_in, block_out = quotient_and_rest(kept[pl.program_id(0)], layer.kernel_shape[1] // rows)
    samples, length = x.shape[0], x.shape[1 if along_features else 2]
    per_sample = length // size

    def part(ref: Any, first: Any, features: int, index: Any) -> Array:
        """Some features of a tile of rows, zero in rows that do not exist."""
        sample, tile = quotient_and_rest(index, per_sample)
        row = tile * size + indices(size)
        if along_features:
            mine = row + share * length < n_rows
            ref = ref.at[sample, pl.ds(tile * size, size), pl.ds(first, features)]
            return load(ref, jnp.broadcast_to(mine[:, None], (size, features)))
        mine = (row < n_rows) & (share * samples + sample < n_samples)
        ref = ref.at[sample, pl.ds(first, features), pl.ds(tile * size, size)]
        return load(ref, jnp.broadcast_to(mine[None, :], (features, size)))

    def add(index: Array, total: Array) -> Array:
        a = part(x, block_in * cols, cols, index)
        b = part(dy, block_out * rows, rows, index)
        return total + (dot(a, b, (0, 0)) if along_features else dot(a, b, (1, 1)))

    total = jnp.zeros((cols, rows), jnp.float32)
    dw[...] = jax.lax.fori_loop(0, samples * per_sample, add, total)
