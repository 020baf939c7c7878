"""`dW1`, `db1` and `dW2` of the two layers of mlp.py: nothing of the hidden units is kept.

A program owns one run of hidden units, a share of the rows, and a few entries of the lists of kept
blocks that meet the run. It computes `h = x (W1 * M1) + b1` and `dh = dy (W2 * M2)^T gelu'(h)` of
those rows again, and adds up `x^T dh`, `gelu(h)^T dy` and dh in registers. A run with more kept
blocks than a program has sums for has more programs; one whose entries do not exist ends at once.
The shares are summed in a fixed order, so results are the same in every run.

By arithmetic, with c the FLOPs of one product over the kept blocks of either layer: 4 c, where the
lists fit one program. One product after the other takes 2 c for the same, but reads gelu(h) and dh
from memory.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.gelu import gelu
from pallas_kernels.layout import spread_gradient
from pallas_kernels.sparse_layer import SparseLayer, Weights
from pallas_kernels.triton.hidden import Lists, Rows, Runs, cut, grids, lists
from pallas_kernels.triton.launch import (
    dot,
    indices,
    launch,
    store,
    tile_size,
    whole,
)
from pallas_kernels.triton.mlp import with_bias
from pallas_kernels.triton.pair_tiles import ShareTiles


def parameter_gradients(
    x: Float[Array, "rows in"],
    dy: Float[Array, "rows out"],
    weights: tuple[Weights, Weights],
    layers: tuple[SparseLayer, SparseLayer],
    tiles: ShareTiles,
    *,
    interpret: bool,
) -> tuple[Float[Array, "in hidden"], Float[Array, " hidden"], Float[Array, "hidden out"]]:
    """`dW1`, `db1` and `dW2`, exactly zero in dropped blocks.

    Args:
      x: `[rows, in]`, not empty.
      dy: `[rows, out]`.
      weights: of both layers.
      layers: both layers.
      tiles: how they are cut.
      interpret: whether the kernel is interpreted.
    """
    n_rows = x.shape[0]
    size = tile_size(n_rows, tiles.rows)
    runs = cut(layers, tiles.units)
    (down, _), (_, across) = grids(layers)
    slots = min(tiles.slots, max(down, across))
    n_tiles = pl.cdiv(n_rows, size)
    per_share = pl.cdiv(n_tiles, min(n_tiles, pl.cdiv(tiles.programs, runs.n)))
    n_shares, length = pl.cdiv(n_tiles, per_share), per_share * size

    def share(a: Array) -> pl.BlockSpec:
        return pl.BlockSpec((length, a.shape[1]), lambda run, share, group: (share, 0))

    def parts(*shape: int) -> tuple[pl.BlockSpec, jax.ShapeDtypeStruct]:
        spec = pl.BlockSpec((None, *shape), lambda run, share, group: (share,) + (0,) * len(shape))
        return spec, jax.ShapeDtypeStruct((n_shares, *shape), jnp.float32)

    blocks = [
        parts(of.kept.size, *layer.block[::-1]) for of, layer in zip(weights, layers, strict=True)
    ]
    out_specs, outs = zip(*blocks, parts(runs.n * runs.size), strict=True)
    first, second = lists(weights, layers)
    tables = [first.start, first.across, first.place, second.start, second.across]
    parameters = [*with_bias(weights[0]), weights[1].kernel]
    sums = launch(
        "sparsemlp_mlp_weights",
        functools.partial(_kernel, runs=runs, n_rows=n_rows, size=size, slots=slots),
        [*tables, x, dy, *parameters],
        grid=(runs.n, n_shares, pl.cdiv(max(down, across), slots)),
        in_specs=[*map(whole, tables), share(x), share(dy), *map(whole, parameters)],
        out_spec=out_specs,
        out=outs,
        tiles=tiles,
        interpret=interpret,
    )
    dw1, dw2, db1 = (jnp.sum(a, axis=0).astype(x.dtype) for a in sums)
    dw1, dw2 = (
        spread_gradient(values, of.kept, layer.kernel_shape)
        for values, of, layer in zip((dw1, dw2), weights, layers, strict=True)
    )
    return dw1, db1, dw2


def _kernel(
    start1: Any,
    across1: Any,
    place1: Any,
    start2: Any,
    across2: Any,
    x: Any,
    dy: Any,
    w1: Any,
    b1: Any,
    w2: Any,
    dw1: Any,
    dw2: Any,
    db1: Any,
    *,
    runs: Runs,
    n_rows: int,
    size: int,
    slots: int,
) -> None:
    run, share, group = (pl.program_id(axis) for axis in range(3))
    (_, cols), (rows, _) = (layer.block for layer in runs.layers)
    length, k1, k2 = x.shape[0], across1.size, across2.size
    first, second = Lists(start1, across1), Lists(start2, across2)
    (column, in_column), (row, in_row) = runs.column(run), runs.row(run)
    (begin1, end1), (begin2, end2) = first.bounds(column), second.bounds(row)
    entries1, entries2 = (
        [begin + group * slots + i for i in range(slots)] for begin in (begin1, begin2)
    )
    # db1 is summed by the first group, whether or not W1 has kept blocks for this run.
    is_needed = (group == 0) | (entries1[0] < end1) | (entries2[0] < end2)
    n_tiles = (is_needed & (begin2 < end2)).astype(jnp.int32) * (length // size)

    def add(tile: Array, sums: tuple[Any, Any, Array]) -> tuple[Any, Any, Array]:
        sums1, sums2, sum_of_dh = sums
        begin = tile * size
        index = share * length + begin + indices(size)
        own = Rows(begin, index < n_rows)
        units, slope = gelu(runs.before_gelu(run, own, x, first, w1, b1))
        dh = slope * runs.after_gelu_gradient(run, own, dy, second, w2)
        sum_of_dh = sum_of_dh + jnp.sum(dh, axis=0)
        units, dh = units.astype(x.dtype), dh.astype(x.dtype)

        def add1(total: Array, entry: Array) -> Array:
            return total + dot(own.load(x, pl.ds(across1[entry] * cols, cols)), dh, (0, 0))

        def add2(total: Array, entry: Array) -> Array:
            return total + dot(units, own.load(dy, pl.ds(across2[entry] * rows, rows)), (0, 0))

        def where(exists: Array, add: Any, total: Array, entry: Array) -> Array:
            return jax.lax.cond(exists, add, lambda total, entry: total, total, entry)

        sums1 = tuple(where(e < end1, add1, s, e) for s, e in zip(sums1, entries1, strict=True))
        sums2 = tuple(where(e < end2, add2, s, e) for s, e in zip(sums2, entries2, strict=True))
        return sums1, sums2, sum_of_dh

    zeros = [
        (jnp.zeros(shape, jnp.float32),) * slots for shape in ((cols, runs.size), (runs.size, rows))
    ]
    sums = (zeros[0], zeros[1], jnp.zeros(runs.size, jnp.float32))
    sums1, sums2, sum_of_dh = jax.lax.fori_loop(0, n_tiles, add, sums)
    store(db1.at[runs.units(run)], sum_of_dh, jnp.broadcast_to(group == 0, sum_of_dh.shape))
    for entry, total in zip(entries1, sums1, strict=True):
        to = dw1.at[place1[jnp.minimum(entry, k1 - 1)], :, pl.ds(in_column * runs.size, runs.size)]
        store(to, total, jnp.broadcast_to(entry < end1, total.shape))
    for entry, total in zip(entries2, sums2, strict=True):
        to = dw2.at[jnp.minimum(entry, k2 - 1), pl.ds(in_row * runs.size, runs.size), :]
        store(to, total, jnp.broadcast_to(entry < end2, total.shape))
