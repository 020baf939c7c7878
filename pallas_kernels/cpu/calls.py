"""The native kernels as functions of JAX arrays."""

import math
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pallas_kernels.cpu.kernel_calls import at_once, block_options, or_empty, over_rows
from pallas_kernels.neighbours import Neighbours
from pallas_kernels.sparse_layer import SparseLayer


def multiply(
    x: Float[Array, "..."],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    kept: Int[Array, " k"],
    layer: SparseLayer,
    *,
    transposed: bool,
) -> Float[Array, "..."]:
    """`x (W * M) + b`, or, transposed, `x (W * M)^T`, along the layer's axis."""
    shape = list(x.shape)
    shape[layer.axis] = layer.kernel_shape[0 if transposed else 1]
    options = {**block_options(layer), "axis": np.int64(layer.axis), "transposed": transposed}
    call = over_rows("sparsemlp_multiply", tuple(shape), tuple(options.items()))
    return call(x, kernel, or_empty(bias, x), kept)[0]


def gradient(
    x: Float[Array, "..."],
    dy: Float[Array, "..."],
    kept: Int[Array, " k"],
    layer: SparseLayer,
    *,
    with_bias: bool,
) -> tuple[Float[Array, "in out"], Float[Array, " n"]]:
    """`(x^T dy) * M` along the layer's axis, and db, empty unless `with_bias`."""
    options = {**block_options(layer), "axis": np.int64(layer.axis)}
    shapes = (layer.kernel_shape, (layer.kernel_shape[1] if with_bias else 0,))
    dw, db = at_once("sparsemlp_gradient", shapes, tuple(options.items()))(x, dy, kept)
    return dw, db


def largest_blocks(
    x: Float[Array, "..."], block: tuple[int, int], k: int, axis: int
) -> tuple[Float[Array, "k height width"], Int[Array, " k"]]:
    """The k blocks of x with the largest norm, and their ids, ascending."""
    shapes, dtypes = ((k, *block), (k,)), (x.dtype, jnp.dtype(jnp.int32))
    options = (("axis", np.int64(axis)),)
    values, ids = at_once("sparsemlp_largest_blocks", shapes, options, dtypes)(x)
    return values, ids


def compact_gradient(
    values: Float[Array, "k height width"],
    ids: Int[Array, " k"],
    dy: Float[Array, "..."],
    n_in: int,
    axis: int,
) -> Float[Array, "in out"]:
    """`X'^T dy` along an axis, X' given by its kept blocks."""
    shapes = ((n_in, dy.shape[axis]),)
    options = (("axis", np.int64(axis)),)
    return at_once("sparsemlp_compact", shapes, options)(values, ids, dy)[0]


def pruned_input_gradient(
    dy: Float[Array, "... out"], kernel: Float[Array, "in out"], kept: Neighbours
) -> Float[Array, "... in"]:
    """`dy' W^T`, dy' being the largest of every few neighbours of dy along its last axis."""
    positions = math.prod(dy.shape[1:-1]) if kept.rescaled else 0
    options = {"n": np.int64(kept.n), "m": np.int64(kept.m), "positions": np.int64(positions)}

    shape = (*dy.shape[:-1], kernel.shape[0])
    return over_rows("sparsemlp_pruned", shape, tuple(options.items()))(dy, kernel)[0]


def keep_largest(
    dy: Float[Array, "..."], kept: Neighbours, axis: Literal[-1, -2]
) -> Float[Array, "..."]:
    """The largest of every few neighbours of dy along an axis, zeros for the others."""
    positions = 0
    if kept.rescaled:
        positions = 1 if axis == -2 else math.prod(dy.shape[1:-1])
    sizes = {"n": kept.n, "m": kept.m, "axis": axis, "positions": positions}
    options = tuple((name, np.int64(size)) for name, size in sizes.items())
    return over_rows("sparsemlp_keep_largest", dy.shape, options)(dy)[0]
