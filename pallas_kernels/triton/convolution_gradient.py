"""`dW` of a convolution with a block-sparse kernel: only the kept blocks are computed.

As the gradient of a layer over the channels, but that x is read so many rows further as a block's
position is shifted (`pixels`). The shares of the rows are summed in a fixed order.
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
from pallas_kernels.triton.configurations import VERSION, GradientTiles, gradient_tiles
from pallas_kernels.triton.launch import dot, launch, load, quotient_and_rest, tile_size, whole
from pallas_kernels.triton.pixels import LARGEST_TILE, Pixels
from pallas_kernels.tuning import configure


def kernel_gradient(
    x: Float[Array, "images height width in"],
    dy: Float[Array, "images new_height new_width out"],
    kept: KeptBlocks,
    layer: SparseLayer,
    pixels: Pixels,
    *,
    interpret: bool,
) -> Float[Array, "positions_and_in out"]:
    """`dW` as a matrix, exactly zero in dropped blocks.

    Args:
      x: images.
      dy: the gradient of the output.
      kept: the kept blocks, each of one position.
      layer: the matrix.
      pixels: the images as rows.
      interpret: whether the kernel is interpreted.
    """
    rows, cols = layer.block
    tiles, size = tiles_of(layer, pixels)
    n_tiles = pl.cdiv(pixels.n_rows, size)
    per_program = pl.cdiv(n_tiles, min(n_tiles, pl.cdiv(tiles.programs, kept.size)))
    n_shares = pl.cdiv(n_tiles, per_program)
    operands = [ids_of(kept), pixels.of_images(x), pixels.of_outputs(dy)]
    parts = launch(
        "sparsemlp_convolution_gradient",
        functools.partial(
            _kernel,
            layer=layer,
            pixels=pixels,
            size=size,
            n_tiles=n_tiles,
            per_program=per_program,
        ),
        operands,
        grid=(kept.size, n_shares),
        in_specs=[*map(whole, operands)],
        out_spec=pl.BlockSpec((None, None, cols, rows), lambda block, share: (share, block, 0, 0)),
        out=jax.ShapeDtypeStruct((n_shares, kept.size, cols, rows), jnp.float32),
        tiles=tiles,
        interpret=interpret,
    )
    blocks = jnp.sum(parts, axis=0).astype(x.dtype)
    return spread_gradient(blocks, kept, layer.kernel_shape)


def tiles_of(layer: SparseLayer, pixels: Pixels) -> tuple[GradientTiles, int]:
    """How it is cut, and the rows of its tiles."""
    problem = layer.problem("triton", VERSION, "convolution_gradients", pixels.n_outputs)
    tiles = configure(problem, gradient_tiles(layer))
    return tiles, tile_size(pixels.n_rows, min(tiles.rows, LARGEST_TILE))


def _kernel(
    kept: Any,
    x: Any,
    dy: Any,
    dw: Any,
    *,
    layer: SparseLayer,
    pixels: Pixels,
    size: int,
    n_tiles: int,
    per_program: int,
) -> None:
    (n_in, n_out), (rows, cols) = layer.kernel_shape, layer.block
    n_blocks_in = n_in // cols // (pixels.kernel_size[0] * pixels.kernel_size[1])
    down, block_out = quotient_and_rest(kept[pl.program_id(0)], n_out // rows)
    position, block_in = quotient_and_rest(down, n_blocks_in)
    phase, shift = pixels.place(position)
    from_phase = phase * pixels.padded_rows + shift
    first = pl.program_id(1) * per_program

    def add(tile: Array, total: Array) -> Array:
        row = tile * size
        a = x.at[pl.ds(row + from_phase, size), pl.ds(block_in * cols, cols)]
        b = dy.at[pl.ds(row + pixels.reach, size), pl.ds(block_out * rows, rows)]
        return total + dot(load(a), load(b), (0, 0))

    total, last = jnp.zeros((cols, rows), jnp.float32), jnp.minimum(first + per_program, n_tiles)
    dw[...] = jax.lax.fori_loop(first, last, add, total)
