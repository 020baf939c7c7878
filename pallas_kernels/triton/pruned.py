"""`dx = dy' W^T` where dy' keeps the largest of every few neighbours of dy.

The neighbours are compared in registers, between the load of dy and the product, so dy' is never
written to memory. The arithmetic is that of the dense product.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.device_table import Problem
from pallas_kernels.neighbours import Neighbours, keep_largest, rescaling
from pallas_kernels.triton.configurations import VERSION, pruned_tiles
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

LARGEST_GROUP = 32


def takes(kept: Neighbours) -> bool:
    """Whether groups fit the tiles, whose sides are powers of two."""
    return kept.m <= LARGEST_GROUP and kept.m & (kept.m - 1) == 0


def pruned_input_gradient(
    dy: Float[Array, "..."],
    kernel: Float[Array, "in out"],
    kept: Neighbours,
    axis: Literal[-1, -2],
    *,
    interpret: bool,
) -> Float[Array, "..."]:
    """The gradient of x.

    Args:
      dy: `[..., out]`, or `[..., out, channels]` with `axis = -2`.
      kernel: the whole kernel.
      kept: which neighbours along the outputs are kept.
      axis: the axis that the layer contracts.
      interpret: whether the kernel is interpreted.
    """
    n_in, n_out = kernel.shape
    along_features = axis == -1
    shape = (*dy.shape[:-1], n_in) if along_features else (*dy.shape[:-2], n_in, dy.shape[-1])
    factor = _factor(dy, kept, axis) if kept.rescaled else None
    dy = dy.reshape(1, -1, n_out) if along_features else dy.reshape(-1, *dy.shape[-2:])
    n_samples, n_rows = dy.shape[0], dy.shape[1 if along_features else 2]
    problem = Problem(
        engine="triton",
        version=VERSION,
        kernel="pruned_input_gradient",
        dtype=str(dy.dtype),
        block=(kept.n, kept.m),
        kernel_shape=(n_in, n_out),
        axis=axis,
        density=kept.n / kept.m,
        n_rows=n_samples * n_rows,
    )
    tiles = configure(problem, pruned_tiles())
    size, inputs = tile_size(n_rows, tiles.rows), tile_size(n_in, tiles.inputs)
    # Triton fails at a single group.
    chunk = max(tiles.outputs, 2 * kept.m)
    outputs = pl.cdiv(n_out, chunk) * chunk

    def panel(features: int, index: Callable[[Any], Any]) -> pl.BlockSpec:
        if along_features:
            return pl.BlockSpec((None, size, features), lambda i, tile, s: (0, tile, index(i)))
        return pl.BlockSpec((None, features, size), lambda i, tile, s: (s, index(i), tile))

    operands = [dy, kernel, *([] if factor is None else [factor])]
    n_rows_of_factor = 1 if factor is None else factor.shape[0]
    dx = launch(
        "sparsemlp_pruned",
        functools.partial(
            _kernel,
            kept=kept,
            chunk=chunk,
            kernel_shape=(n_in, n_out),
            n_rows=n_rows,
            along_features=along_features,
            per_factor=(n_rows if along_features else n_samples) // max(1, n_rows_of_factor),
        ),
        operands,
        grid=(pl.cdiv(n_in, inputs), pl.cdiv(n_rows, size), n_samples),
        in_specs=[
            panel(outputs, lambda _: 0),
            pl.BlockSpec((inputs, outputs), lambda i, *_: (i, 0)),
            *([] if factor is None else [whole(factor)]),
        ],
        out_spec=panel(inputs, lambda i: i),
        out=jax.ShapeDtypeStruct(
            (1, n_rows, n_in) if along_features else (n_samples, n_in, n_rows), dy.dtype
        ),
        tiles=tiles,
        interpret=interpret,
    )
    return dx.reshape(shape)


def _factor(dy: Array, kept: Neighbours, axis: int) -> Array:
    """By what each output is rescaled, `[samples, out]`."""
    pruned = keep_largest(dy, dataclasses.replace(kept, rescaled=False), axis)
    return rescaling(dy, pruned, axis).reshape(-1, dy.shape[axis])


def _kernel(
    dy: Any,
    kernel: Any,
    *rest: Any,
    kept: Neighbours,
    chunk: int,
    kernel_shape: tuple[int, int],
    n_rows: int,
    along_features: bool,
    per_factor: int,
) -> None:
    *factor, dx = rest
    n_in, n_out = kernel_shape
    size, inputs = dy.shape[0 if along_features else 1], kernel.shape[0]
    row, own_sample = pl.program_id(1) * size + indices(size), pl.program_id(2)
    input_ = pl.program_id(0) * inputs + indices(inputs)

    def turned(a: Array, b: Array) -> tuple[Array, Array]:
        """Rows and features as they lie in a tile."""
        return (a[:, None], b[None, :]) if along_features else (a[None, :], b[:, None])

    def add(step: Array, total: Array) -> Array:
        first = pl.multiple_of(step * chunk, chunk)
        output = first + indices(chunk)
        rows, outputs = turned(row, output)
        ref = dy.at[:, pl.ds(first, chunk)] if along_features else dy.at[pl.ds(first, chunk), :]
        tile = load(ref, (rows < n_rows) & (outputs < n_out))
        tile = jnp.where(_largest(tile, kept, 1 if along_features else 0), tile, 0)
        if factor:
            samples = rows if along_features else jnp.broadcast_to(own_sample, rows.shape)
            sample = quotient_and_rest(samples, per_factor)[0]
            exists = (rows < n_rows) & (outputs < n_out)
            tile = tile * load(factor[0].at[sample, outputs], exists)
        exists = (input_[:, None] < n_in) & (output[None, :] < n_out)
        weights = load(kernel.at[:, pl.ds(first, chunk)], exists)
        product = dot(tile, weights, (1, 1)) if along_features else dot(weights, tile, (1, 0))
        return total + product

    total = jnp.zeros((size, inputs) if along_features else (inputs, size), jnp.float32)
    total = jax.lax.fori_loop(0, pl.cdiv(n_out, chunk), add, total)
    rows, features = turned(row, input_)
    store(dx, total, (rows < n_rows) & (features < n_in))


def _largest(tile: Array, kept: Neighbours, axis: int) -> Array:
    """True for the n largest of each group; among equal ones the lower index, NaN as infinite.

    What is kept is found one by one, or what is dropped if that is less: of the smallest the last.
    """
    shape = tile.shape
    groups = tile.astype(jnp.float32)
    groups = groups.reshape(*shape[:axis], shape[axis] // kept.m, kept.m, *shape[axis + 1 :])
    axis += 1
    n_dropped = kept.m - kept.n
    keeps = kept.n <= n_dropped
    index = jax.lax.broadcasted_iota(jnp.int32, groups.shape, axis)
    # NaN is not equal to itself. No size is negative, and none is above infinity.
    size = jnp.where(groups != groups, jnp.inf, jnp.abs(groups))
    size, index = (size, index) if keeps else (-size, kept.m - 1 - index)
    found = index < 0
    for _ in range(min(kept.n, n_dropped)):
        best = jnp.max(jnp.where(found, -jnp.inf, size), axis=axis, keepdims=True)
        is_best = (size == best) & ~found
        first = jnp.min(jnp.where(is_best, index, kept.m), axis=axis, keepdims=True)
        found = found | (index == first)
    return (found if keeps else ~found).reshape(shape)
