"""`y = gelu(x (W1 * M1) + b1) (W2 * M2) + b2`, and x on top, without hidden units in memory.

A program owns some rows and some output features, whose sums it keeps in registers, one tile for
each block of outputs. It walks the hidden units in runs: pre-activations from the kept blocks of
W1, GELU, and a product with each kept block of W2 in that row. Registers have no dynamic index, so
every tile asks by a branch, the same for all threads, whether its block is kept; a dropped one
costs the branch and neither a load nor a product. Runs that no output of the program uses are
skipped. A hidden column of W1 without a kept block is the constant gelu(b1), which needs no case of
its own.

What it costs, by arithmetic; `pair_tiles` tells what was measured. With c1 and c2 FLOPs of the kept
blocks, dense `2 rows in hidden` and `2 rows hidden out`, and G groups of output features, at most
`G c1 + c2`: hidden units are computed anew for each group. Up to 768 features one group is enough,
of 64 rows up to 384 and of 32 rows beyond. One product after the other writes and reads
`rows hidden` numbers in addition; for 384->1536->384 that is 4 times x and y together. For blocks
of 32x32 and 64 rows in bfloat16, a kept pair of blocks loads 4 KiB of x and 2 KiB of each kernel
for 2^18 FLOPs: 32 for each byte, 21 with 32 rows. Nearly all of them come from the caches, as 64
rows of x are 48 KiB and the kernels are shared by all programs.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.gelu import gelu
from pallas_kernels.layout import kept_grid
from pallas_kernels.lists import list_columns
from pallas_kernels.sparse_layer import SparseLayer, Weights
from pallas_kernels.triton.hidden import Lists, Rows, Runs, chosen_runs, cut, grids, in_groups
from pallas_kernels.triton.launch import (
    dot,
    indices,
    launch,
    load,
    tile_size,
    whole,
)
from pallas_kernels.triton.pair_tiles import MlpTiles


def mlp(
    x: Float[Array, "rows in"],
    weights: tuple[Weights, Weights],
    layers: tuple[SparseLayer, SparseLayer],
    tiles: MlpTiles,
    *,
    residual: bool,
    interpret: bool,
) -> Float[Array, "rows out"]:
    """The result of both layers.

    Args:
      x: `[rows, in]`, not empty.
      weights: of both layers.
      layers: both layers.
      tiles: how it is cut.
      residual: whether x is added.
      interpret: whether the kernel is interpreted.
    """
    (n_rows, n_in), n_out = x.shape, layers[1].kernel_shape[1]
    size = tile_size(n_rows, tiles.rows)
    runs = cut(layers, tiles.units)
    first, second = grids(layers)
    columns = list_columns(weights[0].kept, first)
    kept = kept_grid(weights[1].kept, second)
    kept = in_groups(kept, min(second[1], max(1, tiles.features // layers[1].block[0])))
    count, order = chosen_runs(kept.any(axis=2), runs.per_row)
    lists = [count, order, kept.astype(jnp.int32), columns.start, columns.across]
    operands = [*lists, x, *with_bias(weights[0]), *with_bias(weights[1])]
    return launch(
        "sparsemlp_mlp",
        functools.partial(_kernel, runs=runs, n_rows=n_rows, residual=residual),
        operands,
        grid=(pl.cdiv(n_rows, size), kept.shape[0]),
        in_specs=[
            *map(whole, lists),
            panel(size, n_in),
            *map(whole, operands[len(lists) + 1 :]),
        ],
        out_spec=panel(size, n_out),
        out=jax.ShapeDtypeStruct((n_rows, n_out), x.dtype),
        tiles=tiles,
        interpret=interpret,
    )


def panel(rows: int, features: int) -> pl.BlockSpec:
    """The rows of a program, which the first axis of the grid counts."""
    return pl.BlockSpec((rows, features), lambda tile, group: (tile, 0))


def with_bias(weights: Weights) -> tuple[Array, Array]:
    """The kernel, and the bias or zeros."""
    kernel, bias, _ = weights
    return kernel, jnp.zeros(kernel.shape[1], kernel.dtype) if bias is None else bias


def own_rows(size: int, n_rows: int) -> Rows:
    """The rows of a program in its panel; to be taken outside of loops."""
    first = pl.program_id(0) * size
    return Rows(0, first + indices(size) < n_rows)


def _kernel(
    count: Any,
    order: Any,
    kept: Any,
    start: Any,
    across: Any,
    x: Any,
    w1: Any,
    b1: Any,
    w2: Any,
    b2: Any,
    y: Any,
    *,
    runs: Runs,
    n_rows: int,
    residual: bool,
) -> None:
    size, width = x.shape[0], runs.layers[1].block[0]
    n_blocks = kept.shape[2]
    group = pl.program_id(1)
    rows = own_rows(size, n_rows)

    def outputs(index: int) -> Any:
        return pl.ds((group * n_blocks + index) * width, width)

    def add(step: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        run = order[group, step]
        units, _ = gelu(runs.before_gelu(run, rows, x, Lists(start, across), w1, b1))
        units = units.astype(x.dtype)
        row, _ = runs.row(run)

        def product(total: Array, index: int) -> Array:
            return total + dot(units, load(w2.at[runs.units(run), outputs(index)]), (1, 0))

        return tuple(
            jax.lax.cond(
                kept[group, row, index] > 0,
                functools.partial(product, index=index),
                lambda total: total,
                total,
            )
            for index, total in enumerate(totals)
        )

    zero = jnp.zeros((size, width), jnp.float32)
    totals = jax.lax.fori_loop(0, count[group], add, (zero,) * n_blocks)
    for index, total in enumerate(totals):
        there = (group * n_blocks + index) * width < y.shape[1]
        own, features = Rows(0, rows.exists & there), outputs(index)
        total = total + load(b2.at[features], jnp.broadcast_to(there, (width,)))[None, :]
        if residual:
            total = total + own.load(x, features)
        own.store(y, features, total)
