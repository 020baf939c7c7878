"""The native kernels as functions of JAX arrays."""

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int

from pallas_kernels.cpu import library
from pallas_kernels.neighbours import Neighbours
from pallas_kernels.pruning import Pruning, Scales
from pallas_kernels.sparse_layer import SparseLayer, Weights


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
    options = {**_block(layer), "axis": np.int64(layer.axis), "transposed": transposed}
    call = _over_rows("sparsemlp_multiply", tuple(shape), tuple(options.items()))
    return call(x, kernel, _or_empty(bias, x), kept)[0]


def gradient(
    x: Float[Array, "..."],
    dy: Float[Array, "..."],
    kept: Int[Array, " k"],
    layer: SparseLayer,
    *,
    with_bias: bool,
) -> tuple[Float[Array, "in out"], Float[Array, " n"]]:
    """`(x^T dy) * M` along the layer's axis, and db, empty unless `with_bias`."""
    options = {**_block(layer), "axis": np.int64(layer.axis)}
    shapes = (layer.kernel_shape, (layer.kernel_shape[1] if with_bias else 0,))
    dw, db = _at_once("sparsemlp_gradient", shapes, tuple(options.items()))(x, dy, kept)
    return dw, db


def largest_blocks(
    x: Float[Array, "..."], block: tuple[int, int], k: int, axis: int
) -> tuple[Float[Array, "k height width"], Int[Array, " k"]]:
    """The k blocks of x with the largest norm, and their ids, ascending."""
    shapes, dtypes = ((k, *block), (k,)), (x.dtype, jnp.dtype(jnp.int32))
    options = (("axis", np.int64(axis)),)
    values, ids = _at_once("sparsemlp_largest_blocks", shapes, options, dtypes)(x)
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
    return _at_once("sparsemlp_compact", shapes, options)(values, ids, dy)[0]


def pruned_input_gradient(
    dy: Float[Array, "... out"], kernel: Float[Array, "in out"], kept: Neighbours
) -> Float[Array, "... in"]:
    """`dy' W^T`, dy' being the largest of every few neighbours of dy along its last axis."""
    positions = math.prod(dy.shape[1:-1]) if kept.rescaled else 0
    options = {"n": np.int64(kept.n), "m": np.int64(kept.m), "positions": np.int64(positions)}

    shape = (*dy.shape[:-1], kernel.shape[0])
    return _over_rows("sparsemlp_pruned", shape, tuple(options.items()))(dy, kernel)[0]


def keep_largest(
    dy: Float[Array, "..."], kept: Neighbours, axis: Literal[-1, -2]
) -> Float[Array, "..."]:
    """The largest of every few neighbours of dy along an axis, zeros for the others."""
    positions = 0
    if kept.rescaled:
        positions = 1 if axis == -2 else math.prod(dy.shape[1:-1])
    sizes = {"n": kept.n, "m": kept.m, "axis": axis, "positions": positions}
    options = tuple((name, np.int64(size)) for name, size in sizes.items())
    return _over_rows("sparsemlp_keep_largest", dy.shape, options)(dy)[0]


def mlp(
    x: Float[Array, "*batch in"],
    weights: tuple[Weights, Weights],
    layers: tuple[SparseLayer, SparseLayer],
    residual: bool,
) -> Float[Array, "*batch out"]:
    """`gelu(x (W1 * M1) + b1) (W2 * M2) + b2`, and x on top if `residual`."""
    shape = (*x.shape[:-1], layers[1].kernel_shape[1])
    call = _over_rows("sparsemlp_mlp", shape, tuple(_pair(layers, residual).items()))
    return call(x, *_operands(weights, x))[0]


def mlp_gradients(
    x: Float[Array, "*batch in"],
    dy: Float[Array, "*batch out"],
    weights: tuple[Weights, Weights],
    layers: tuple[SparseLayer, SparseLayer],
    residual: bool,
    *,
    straight_through: bool = False,
) -> tuple[Float[Array, "*batch in"], tuple[Weights, Weights]]:
    """Dx and the gradients of both layers; that of an absent bias is None."""
    options = {**_pair(layers, residual), "straight_through": straight_through}
    operands = _operands(weights, x)
    shapes = (x.shape, *(operands[i].shape for i in (0, 1, 3, 4)))
    call = _at_once("sparsemlp_mlp_gradient", shapes, tuple(options.items()))
    dx, dw1, db1, dw2, db2 = call(x, dy, *operands)
    first, second = weights
    return dx, (
        Weights(dw1, None if first.bias is None else db1),
        Weights(dw2, None if second.bias is None else db2),
    )


def pruned_mlp(
    x: Float[Array, "*batch in"],
    weights: tuple[Weights, Weights],
    scales: Scales,
    layers: tuple[SparseLayer, SparseLayer],
    pruning: tuple[Pruning, Pruning],
    residual: bool,
) -> tuple[Float[Array, "*batch out"], list[Float[Array, "_ _"] | None]]:
    """`after (gelu((scale x + shift) (W1 * M1) + b1) (W2 * M2) + b2)`, x on top if `residual`.

    And the norms of the blocks of pruned activations, float32.
    """
    first, second = weights
    if scales.after is not None:
        bias = None if second.bias is None else second.bias * scales.after
        second = Weights(second.kernel * scales.after[None, :], bias, second.kept)
    ranked = [own.ranked or (0, 0) for own in pruning]
    options = {**_pair(layers, residual), **_sides(ranked)}
    n_rows = math.prod(x.shape[:-1])
    shapes: list[tuple[int, ...]] = [(*x.shape[:-1], layers[1].kernel_shape[1])]
    for layer, (height, width) in zip(layers, ranked, strict=True):
        blocks = (n_rows // height, layer.kernel_shape[0] // width) if height else (0,)
        shapes.append(blocks)
    dtypes = (x.dtype, jnp.dtype(jnp.float32), jnp.dtype(jnp.float32))
    call = _at_once("sparsemlp_pruned_mlp", tuple(shapes), tuple(options.items()), dtypes)
    of_x = [_or_empty(scale, x) for scale in scales[:2]]
    y, *norms = call(x, *_operands((first, second), x), *of_x)
    return y, [norm if height else None for norm, (height, _) in zip(norms, ranked, strict=True)]


def pruned_mlp_gradients(
    x: Float[Array, "*batch in"],
    dy: Float[Array, "*batch out"],
    weights: tuple[Weights, Weights],
    scales: Scales,
    kept: tuple[Int[Array, " k1"] | None, Int[Array, " k2"] | None],
    layers: tuple[SparseLayer, SparseLayer],
    pruning: tuple[Pruning, Pruning],
    residual: bool,
    straight_through: bool,
) -> tuple[Float[Array, "*batch in"], tuple[Weights, Weights], Scales]:
    """Dx, the gradients of both layers and those of the scales; of what is absent None."""
    options = {**_pair(layers, residual), "straight_through": straight_through}
    options |= _sides([own.activation or (0, 0) for own in pruning])
    for index, own in enumerate(pruning, 1):
        kept_of_dy = own.gradient or Neighbours(0, 0)
        sizes = {"n": kept_of_dy.n, "m": kept_of_dy.m, "positions": own.positions}
        options |= {f"{name}{index}": np.int64(size) for name, size in sizes.items()}
        options[f"pools{index}"] = own.pools
    operands = [*_operands(weights, x), *(_or_empty(scale, x) for scale in scales)]
    ids = [jnp.zeros(0, jnp.int32) if own is None else own for own in kept]
    shapes = (x.shape, *(operands[i].shape for i in (0, 1, 3, 4, 6, 7, 8)))
    call = _at_once("sparsemlp_pruned_mlp_gradient", shapes, tuple(options.items()))
    dx, dw1, db1, dw2, db2, *d_scales = call(x, dy, *operands, *ids)
    (_, b1, _), (_, b2, _) = weights
    gradients = (
        Weights(dw1, None if b1 is None else db1),
        Weights(dw2, None if b2 is None else db2),
    )
    of_scales = zip(d_scales, scales, strict=True)
    return dx, gradients, Scales(*(None if own is None else d for d, own in of_scales))


# Functions are made once for what they do: JAX compiles what it maps anew for each new function.
@functools.lru_cache(maxsize=1024)
def _over_rows(
    name: str, shape: tuple[int, ...], options: tuple[tuple[str, Any], ...]
) -> custom_vmap:
    """A kernel whose result has the rows of the first operand.

    Under `vmap` over that alone its axis joins the rows.

    Args:
      name: of the kernel.
      shape: of the result, without axes of `vmap`.
      options: its attributes.
    """

    @custom_vmap
    def call(*operands: Array) -> list[Array]:
        leading = operands[0].shape[: operands[0].ndim - len(shape)]
        return library.call(name, [(*leading, *shape)], operands, dict(options))

    @call.def_vmap
    def rule(size: int, in_batched: list[bool], *operands: Array) -> tuple:
        del size
        if not any(in_batched[1:]):
            return call(*operands), [True]
        return _in_turn(call, in_batched, operands)

    return call


@functools.lru_cache(maxsize=1024)
def _at_once(
    name: str,
    shapes: tuple[tuple[int, ...], ...],
    options: tuple[tuple[str, Any], ...],
    dtypes: tuple[np.dtype, ...] | None = None,
) -> custom_vmap:
    """A kernel that needs all of its operands; `vmap` calls it once for each member of a batch.

    Args:
      name: of the kernel.
      shapes: of its results.
      options: its attributes.
      dtypes: of its results; that of the first operand by default.
    """

    @custom_vmap
    def call(*operands: Array) -> list[Array]:
        return library.call(name, shapes, operands, dict(options), dtypes)

    @call.def_vmap
    def rule(size: int, in_batched: list[bool], *operands: Array) -> tuple:
        del size
        return _in_turn(call, in_batched, operands)

    return call


def _in_turn(
    call: custom_vmap, in_batched: Sequence[bool], operands: Sequence[Array]
) -> tuple[list[Array], list[bool]]:
    """One call for each member of a batch."""
    results = _mapped(call, tuple(in_batched), tuple(operands))
    return results, [True] * len(results)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _mapped(
    call: custom_vmap, in_batched: tuple[bool, ...], operands: tuple[Array, ...]
) -> list[Array]:
    batch = [a for a, is_batched in zip(operands, in_batched, strict=True) if is_batched]

    def one(members: list[Array]) -> list[Array]:
        rest = iter(members)
        return call(*(next(rest) if b else a for a, b in zip(operands, in_batched, strict=True)))

    return jax.lax.map(one, batch)


def _block(layer: SparseLayer) -> dict:
    return {"rows": np.int64(layer.block[0]), "cols": np.int64(layer.block[1])}


def _pair(layers: tuple[SparseLayer, SparseLayer], residual: bool) -> dict:
    blocks = {
        f"{side}{index}": size
        for index, layer in enumerate(layers, 1)
        for side, size in _block(layer).items()
    }
    return {**blocks, "residual": residual}


def _sides(blocks: Sequence[tuple[int, int]]) -> dict:
    """The sides of the blocks of two activations, zero for none."""
    return {
        f"{name}{index}": np.int64(side)
        for index, block in enumerate(blocks, 1)
        for name, side in zip(("height", "width"), block, strict=True)
    }


def _operands(weights: tuple[Weights, Weights], x: Array) -> list[Array]:
    return [operand for w in weights for operand in (w.kernel, _or_empty(w.bias, x), w.kept)]


def _or_empty(bias: Array | None, x: Array) -> Array:
    return jnp.zeros(0, x.dtype) if bias is None else bias
