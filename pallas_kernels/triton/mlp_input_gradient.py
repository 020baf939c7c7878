"""`dx` of the two layers of mlp.py, from x and dy: nothing of the hidden units is kept.

A program owns some rows and some features of dx, whose sums it keeps in registers, as mlp.py does
those of y. Of each run of hidden units it computes `h = x (W1 * M1) + b1` again and, from dy,
`dh = dy (W2 * M2)^T gelu'(h)`, and multiplies dh by each kept block of W1 in that column.

By arithmetic, with c the FLOPs of one product over the kept blocks of either layer: 3 c, where the
inputs fit one program. One product after the other takes 2 c, but writes and reads dh, and has to
have kept h.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.gelu import gelu
from pallas_kernels.layout import kept_grid
from pallas_kernels.sparse_layer import SparseLayer, Weights
from pallas_kernels.triton.hidden import (
    Lists,
    Rows,
    Runs,
    chosen_runs,
    cut,
    grids,
    in_groups,
    lists,
)
from pallas_kernels.triton.launch import dot, launch, load, tile_size, whole
from pallas_kernels.triton.mlp import own_rows, panel, with_bias
from pallas_kernels.triton.pair_tiles import MlpTiles


def input_gradient(
    x: Float[Array, "rows in"],
    dy: Float[Array, "rows out"],
    weights: tuple[Weights, Weights],
    layers: tuple[SparseLayer, SparseLayer],
    tiles: MlpTiles,
    *,
    residual: bool,
    interpret: bool,
) -> Float[Array, "rows in"]:
    """The gradient of x.

    Args:
      x: `[rows, in]`, not empty.
      dy: `[rows, out]`.
      weights: of both layers.
      layers: both layers.
      tiles: how it is cut.
      residual: whether x was added to the result.
      interpret: whether the kernel is interpreted.
    """
    n_rows = x.shape[0]
    size = tile_size(n_rows, tiles.rows)
    runs = cut(layers, tiles.units)
    first, second = (
        kept_grid(of.kept, shape) for of, shape in zip(weights, grids(layers), strict=True)
    )
    cols = layers[0].block[1]
    kept = in_groups(first.T, min(first.shape[0], max(1, tiles.features // cols)))
    # A run is of use where W1 takes it to the inputs of the group, and W2 has it reached by dy.
    columns = jnp.repeat(kept.any(axis=2), runs.per_column, axis=1)
    reached = jnp.repeat(second.any(axis=1), runs.per_row)
    count, order = chosen_runs(columns & reached, 1)
    columns_of_1, rows_of_2 = lists(weights, layers)
    tables = [
        *(count, order, kept.astype(jnp.int32)),
        *(columns_of_1.start, columns_of_1.across, rows_of_2.start, rows_of_2.across),
    ]
    parameters = [*with_bias(weights[0]), weights[1].kernel]
    return launch(
        "sparsemlp_mlp_input",
        functools.partial(_kernel, runs=runs, n_rows=n_rows, residual=residual),
        [*tables, x, dy, *parameters],
        grid=(pl.cdiv(n_rows, size), kept.shape[0]),
        in_specs=[
            *map(whole, tables),
            panel(size, x.shape[1]),
            panel(size, dy.shape[1]),
            *map(whole, parameters),
        ],
        out_spec=panel(size, x.shape[1]),
        out=jax.ShapeDtypeStruct(x.shape, x.dtype),
        tiles=tiles,
        interpret=interpret,
    )


def _kernel(
    count: Any,
    order: Any,
    kept: Any,
    start1: Any,
    across1: Any,
    start2: Any,
    across2: Any,
    x: Any,
    dy: Any,
    w1: Any,
    b1: Any,
    w2: Any,
    dx: Any,
    *,
    runs: Runs,
    n_rows: int,
    residual: bool,
) -> None:
    size, width = x.shape[0], runs.layers[0].block[1]
    n_blocks = kept.shape[2]
    group = pl.program_id(1)
    rows = own_rows(size, n_rows)
    first, second = Lists(start1, across1), Lists(start2, across2)

    def inputs(index: int) -> Any:
        return pl.ds((group * n_blocks + index) * width, width)

    def add(step: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        run = order[group, step]
        _, slope = gelu(runs.before_gelu(run, rows, x, first, w1, b1))
        dh = slope * runs.after_gelu_gradient(run, rows, dy, second, w2)
        dh = dh.astype(x.dtype)
        column, _ = runs.column(run)

        def product(total: Array, index: int) -> Array:
            return total + dot(dh, load(w1.at[inputs(index), runs.units(run)]), (1, 1))

        return tuple(
            jax.lax.cond(
                kept[group, column, index] > 0,
                functools.partial(product, index=index),
                lambda total: total,
                total,
            )
            for index, total in enumerate(totals)
        )

    zero = jnp.zeros((size, width), jnp.float32)
    totals = jax.lax.fori_loop(0, count[group], add, (zero,) * n_blocks)
    for index, total in enumerate(totals):
        there = (group * n_blocks + index) * width < dx.shape[1]
        own = Rows(0, rows.exists & there)
        if residual:
            total = total + own.load(dy, inputs(index))
        own.store(dx, inputs(index), total)
