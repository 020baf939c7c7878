"""`dW = X'^T dy` from the kept blocks of an activation: a block-sparse operand times a dense one.

A program owns one column of blocks of X', so some inputs of the layer, and some outputs. It gathers
the rows of dy that its kept blocks meet, several blocks for one product of tensor cores: a block of
8 rows is too short for them.
"""

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from pallas_kernels.device_table import Problem
from pallas_kernels.lists import list_columns
from pallas_kernels.triton.configurations import VERSION, compact_tiles
from pallas_kernels.triton.launch import (
    dot,
    indices,
    launch,
    load,
    quotient_and_rest,
    store,
    tile_size,
    whole,
)
from pallas_kernels.tuning import configure

NARROWEST = 16
"""Side of the smallest product of tensor cores that Triton has."""
WIDEST = 128
"""Inputs of the widest block that a program has registers for."""


def takes(values: Float[Array, "k height width"]) -> bool:
    """Whether blocks fit the tiles, whose sides are powers of two."""
    width = values.shape[2]
    return width <= WIDEST and width & (width - 1) == 0


def compact_gradient(
    values: Float[Array, "k height width"],
    ids: Int[Array, " k"],
    dy: Float[Array, "rows out"],
    n_in: int,
    axis: Literal[-1, -2],
    *,
    interpret: bool,
) -> Float[Array, "in out"]:
    """`dW` from kept blocks.

    Args:
      values: the kept blocks of X' `[rows, in]`.
      ids: int32 `[k]`, their flat ids, ascending, row-major over the block grid.
      dy: `[rows, out]`.
      n_in: inputs of the layer.
      axis: the axis that the layer contracts; dy is turned already.
      interpret: whether the kernel is interpreted.
    """
    k, height, width = values.shape
    n_rows, n_out = dy.shape
    across = n_in // width
    lists = list_columns(ids, (n_rows // height, across))
    problem = Problem(
        engine="triton",
        version=VERSION,
        kernel="compact_gradient",
        dtype=str(dy.dtype),
        block=(height, width),
        kernel_shape=(n_in, n_out),
        axis=axis,
        density=values.size / (n_rows * n_in),
        n_rows=n_rows,
    )
    tiles = configure(problem, compact_tiles())
    size, padded = tile_size(n_out, tiles.outputs), max(NARROWEST, width)
    operands = [lists.start, lists.across, lists.place, values.reshape(k * height, width), dy]
    dw = launch(
        "sparsemlp_compact",
        functools.partial(_kernel, height=height, n_out=n_out, n_together=tiles.rows),
        operands,
        grid=(pl.cdiv(n_out, size), across),
        in_specs=list(map(whole, operands)),
        out_spec=pl.BlockSpec((None, padded, size), lambda output, column: (column, 0, output)),
        out=jax.ShapeDtypeStruct((across, padded, n_out), dy.dtype),
        tiles=tiles,
        interpret=interpret,
    )
    return dw[:, :width].reshape(n_in, n_out)


def _kernel(
    start: Any,
    across: Any,
    place: Any,
    values: Any,
    dy: Any,
    dw: Any,
    *,
    height: int,
    n_out: int,
    n_together: int,
) -> None:
    padded, size = dw.shape
    output, column = pl.program_id(0) * size + indices(size), pl.program_id(1)
    first = start[column]
    n_mine = (start[column + 1] - first) * height
    inputs = indices(padded)
    has_output, has_input = (output < n_out)[None, :], (inputs < values.shape[1])[None, :]

    def add(step: Array, total: Array) -> Array:
        row = step * n_together + indices(n_together)
        mine = row < n_mine
        block, inside = quotient_and_rest(row, height)
        down, kept = (load(a.at[first + block], mine) for a in (across, place))
        row_of_values, row_of_dy = kept * height + inside, down * height + inside
        a = load(values.at[row_of_values[:, None], inputs[None, :]], mine[:, None] & has_input)
        b = load(dy.at[row_of_dy[:, None], output[None, :]], mine[:, None] & has_output)
        return total + dot(a, b, (0, 0))

    total = jnp.zeros((padded, size), jnp.float32)
    total = jax.lax.fori_loop(0, pl.cdiv(n_mine, n_together), add, total)
    store(dw, total, jnp.broadcast_to(has_output, total.shape))
