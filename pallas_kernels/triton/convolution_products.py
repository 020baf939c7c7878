"""A convolution with a block-sparse kernel, and its input gradient: shifted rows of pixels.

Both are the products of a layer over the channels, but that each position of the kernel reads rows
of pixels that lie so many rows further (`pixels`). A program owns some of these rows and a block of
the result's channels; windows are never unfolded, and a block that is dropped is never loaded.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.lists import BlockLists, KeptBlocks, ids_of, list_columns, list_rows
from pallas_kernels.sparse_layer import SparseLayer
from pallas_kernels.triton.configurations import VERSION, product_tiles
from pallas_kernels.triton.launch import (
    Tiles,
    dot,
    launch,
    load,
    quotient_and_rest,
    tile_size,
    whole,
)
from pallas_kernels.triton.pixels import LARGEST_TILE, Pixels
from pallas_kernels.tuning import configure


def convolution(
    x: Float[Array, "images height width in"],
    kernel: Float[Array, "positions_and_in out"],
    bias: Float[Array, " out"] | None,
    kept: KeptBlocks,
    layer: SparseLayer,
    pixels: Pixels,
    *,
    interpret: bool,
) -> Float[Array, "images new_height new_width out"]:
    """The convolution with `W * M`, plus the bias.

    Args:
      x: images.
      kernel: as a matrix, of which the kept blocks are read.
      bias: `[out]`, or None.
      kept: the kept blocks, each of one position.
      layer: the matrix.
      pixels: the images as rows.
      interpret: whether the kernel is interpreted.
    """
    n_out = layer.kernel_shape[1]
    tiles, size = tiles_of(layer, pixels, "convolution")
    lists = list_columns(kept, layer.grid_shape)
    out = jax.ShapeDtypeStruct((pl.cdiv(pixels.n_rows, size) * size, n_out), x.dtype)
    operands = [pixels.of_images(x), kernel, *([] if bias is None else [bias])]
    name = "sparsemlp_convolution"
    y = _launch(name, lists, operands, out, layer, pixels, tiles, size, interpret)
    return pixels.to_outputs(y)


def input_gradient(
    dy: Float[Array, "images new_height new_width out"],
    kernel: Float[Array, "positions_and_in out"],
    kept: KeptBlocks,
    layer: SparseLayer,
    pixels: Pixels,
    *,
    interpret: bool,
) -> Float[Array, "images height width in"]:
    """The gradient of the images, with `W * M`; arguments as for `convolution`."""
    tiles, size = tiles_of(layer, pixels, "convolution_input_gradient")
    n_channels = layer.kernel_shape[0] // (pixels.kernel_size[0] * pixels.kernel_size[1])
    lists = _lists_of_inputs(kept, layer, pixels, n_channels // layer.block[1])
    n_rows = pl.cdiv(pixels.n_rows, size) * size
    out = jax.ShapeDtypeStruct((pixels.n_phases, n_rows, n_channels), dy.dtype)
    operands = [pixels.of_outputs(dy), kernel]
    name = "sparsemlp_convolution_transposed"
    dx = _launch(name, lists, operands, out, layer, pixels, tiles, size, interpret)
    return pixels.to_images(dx)


def tiles_of(layer: SparseLayer, pixels: Pixels, method: str) -> tuple[Tiles, int]:
    """How a product is cut, and the rows of its tiles."""
    problem = layer.problem("triton", VERSION, method, pixels.n_outputs)
    tiles = configure(problem, product_tiles(layer))
    return tiles, tile_size(pixels.n_rows, min(tiles.rows, LARGEST_TILE))


def _lists_of_inputs(
    kept: KeptBlocks, layer: SparseLayer, pixels: Pixels, n_blocks_in: int
) -> BlockLists:
    """The kept blocks of each block of input channels in each phase, whatever their position.

    An entry is that of a position and a block of outputs, `position * n_blocks_out + block`.
    """
    n_blocks_out = layer.kernel_shape[1] // layer.block[0]
    n_positions = pixels.kernel_size[0] * pixels.kernel_size[1]
    down, block_out = quotient_and_rest(ids_of(kept), n_blocks_out)
    position, block_in = quotient_and_rest(down, n_blocks_in)
    phase, _ = pixels.place(position)
    line, n_across = phase * n_blocks_in + block_in, n_positions * n_blocks_out
    ids = jnp.sort(line * n_across + position * n_blocks_out + block_out)
    return list_rows(ids, (pixels.n_phases * n_blocks_in, n_across))


def _launch(
    name: str,
    lists: BlockLists,
    operands: list[Array],
    out: jax.ShapeDtypeStruct,
    layer: SparseLayer,
    pixels: Pixels,
    tiles: Tiles,
    size: int,
    interpret: bool,
) -> Array:
    operands = [lists.start, lists.across, lists.order, *operands]
    return launch(
        name,
        functools.partial(_kernel, layer=layer, pixels=pixels, size=size),
        operands,
        # On one axis: of the others a GPU has 65535 programs at most.
        grid=(lists.order.size * pl.cdiv(pixels.n_rows, size),),
        in_specs=[*map(whole, operands)],
        out_spec=pl.BlockSpec(out.shape, lambda *_: (0,) * len(out.shape)),
        out=out,
        tiles=tiles,
        interpret=interpret,
    )


def _kernel(
    start: Any,
    across: Any,
    order: Any,
    x: Any,
    kernel: Any,
    *rest: Any,
    layer: SparseLayer,
    pixels: Pixels,
    size: int,
) -> None:
    *bias, y = rest
    (n_in, n_out), (rows, cols) = layer.kernel_shape, layer.block
    transposed = len(y.shape) == 3
    width, depth = (cols, rows) if transposed else (rows, cols)
    n_blocks_in = n_in // cols // (pixels.kernel_size[0] * pixels.kernel_size[1])
    tile, place = quotient_and_rest(pl.program_id(0), order.shape[0])
    line, row = order[place], tile * size

    def add(entry: Array, total: Array) -> Array:
        if transposed:
            position, block = quotient_and_rest(across[entry], n_out // rows)
            _, shift = pixels.place(position)
            first = row + pixels.reach - shift
            down = position * n_blocks_in + jax.lax.rem(line, jnp.int32(n_blocks_in))
            weights = kernel.at[pl.ds(down * cols, cols), pl.ds(block * rows, rows)]
        else:
            position, block = quotient_and_rest(across[entry], n_blocks_in)
            phase, shift = pixels.place(position)
            first = phase * pixels.padded_rows + row + shift
            weights = kernel.at[pl.ds(across[entry] * cols, cols), pl.ds(line * rows, rows)]
        tile = load(x.at[pl.ds(first, size), pl.ds(block * depth, depth)])
        return total + dot(tile, load(weights), (1, 1 if transposed else 0))

    zeros = jnp.zeros((size, width), jnp.float32)
    total = jax.lax.fori_loop(start[line], start[line + 1], add, zeros)
    if transposed:
        phase, block = quotient_and_rest(line, n_blocks_in)
        y[phase, pl.ds(row, size), pl.ds(block * cols, cols)] = total.astype(y.dtype)
        return
    features = pl.ds(line * rows, rows)
    if bias:
        total = total + bias[0][features].astype(jnp.float32)[None, :]
    y[pl.ds(row, size), features] = total.astype(y.dtype)
