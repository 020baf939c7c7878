"""The native kernels as functions of JAX arrays."""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int

from pallas_kernels.cpu import library
from pallas_kernels.neighbours import Neighbours
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

    def call(*operands: Array) -> list[Array]:
        leading = operands[0].shape[: operands[0].ndim - x.ndim]
        return library.call("sparsemlp_multiply", [(*leading, *shape)], operands, options)

    return _batched_over_rows(call)(x, kernel, _or_empty(bias, x), kept)[0]


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
    shapes = [layer.kernel_shape, (layer.kernel_shape[1] if with_bias else 0,)]

    @custom_vmap
    def call(*operands: Array) -> list[Array]:
        return library.call("sparsemlp_gradient", shapes, operands, options)

    _vmap_in_turn(call)
    dw, db = call(x, dy, kept)
    return dw, db


def largest_blocks(
    x: Float[Array, "..."], block: tuple[int, int], k: int, axis: int
) -> tuple[Float[Array, "k height width"], Int[Array, " k"]]:
    """The k blocks of x with the largest norm, and their ids, ascending."""
    options = {"axis": np.int64(axis)}

    @custom_vmap
    def call(*operands: Array) -> list[Array]:
        shapes = [(k, *block), (k,)]
        return library.call(
            "sparsemlp_largest_blocks", shapes, operands, options, (x.dtype, jnp.int32)
        )

    _vmap_in_turn(call)
    values, ids = call(x)
    return values, ids


def compact_gradient(
    values: Float[Array, "k height width"],
    ids: Int[Array, " k"],
    dy: Float[Array, "..."],
    n_in: int,
    axis: int,
) -> Float[Array, "in out"]:
    """`X'^T dy` along an axis, X' given by its kept blocks."""
    options = {"axis": np.int64(axis)}
    shape = (n_in, dy.shape[axis])

    @custom_vmap
    def call(*operands: Array) -> list[Array]:
        return library.call("sparsemlp_compact", [shape], operands, options)

    _vmap_in_turn(call)
    return call(values, ids, dy)[0]


def pruned_input_gradient(
    dy: Float[Array, "... out"], kernel: Float[Array, "in out"], kept: Neighbours
) -> Float[Array, "... in"]:
    """`dy' W^T`, dy' being the largest of every few neighbours of dy along its last axis."""
    positions = math.prod(dy.shape[1:-1]) if kept.rescaled else 0
    options = {"n": np.int64(kept.n), "m": np.int64(kept.m), "positions": np.int64(positions)}

    def call(*operands: Array) -> list[Array]:
        shape = (*operands[0].shape[:-1], kernel.shape[0])
        return library.call("sparsemlp_pruned", [shape], operands, options)

    return _batched_over_rows(call)(dy, kernel)[0]


def mlp(
    x: Float[Array, "*batch in"],
    weights: tuple[Weights, Weights],
    layers: tuple[SparseLayer, SparseLayer],
    residual: bool,
) -> Float[Array, "*batch out"]:
    """`gelu(x (W1 * M1) + b1) (W2 * M2) + b2`, and x on top if `residual`."""
    options = _pair(layers, residual)

    def call(*operands: Array) -> list[Array]:
        shape = (*operands[0].shape[:-1], layers[1].kernel_shape[1])
        return library.call("sparsemlp_mlp", [shape], operands, options)

    return _batched_over_rows(call)(x, *_operands(weights, x))[0]


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
    shapes = [x.shape, *(operands[i].shape for i in (0, 1, 3, 4))]

    @custom_vmap
    def call(*operands: Array) -> list[Array]:
        return library.call("sparsemlp_mlp_gradient", shapes, operands, options)

    _vmap_in_turn(call)
    dx, dw1, db1, dw2, db2 = call(x, dy, *operands)
    first, second = weights
    return dx, (
        Weights(dw1, None if first.bias is None else db1),
        Weights(dw2, None if second.bias is None else db2),
    )


def _batched_over_rows(call: Callable[..., list[Array]]) -> Callable[..., list[Array]]:
    """Under `vmap` over the first operand alone, its axis joins the rows."""
    batched = custom_vmap(call)

    @batched.def_vmap
    def rule(size: int, in_batched: list[bool], *operands: Array) -> tuple:
        if not any(in_batched[1:]):
            return _batched_over_rows(call)(*operands), [True]
        return _in_turn(_batched_over_rows(call), size, in_batched, operands)

    return batched


def _vmap_in_turn(batched: custom_vmap) -> None:
    @batched.def_vmap
    def rule(size: int, in_batched: list[bool], *operands: Array) -> tuple:
        return _in_turn(batched, size, in_batched, operands)


def _in_turn(
    call: Callable[..., list[Array]],
    size: int,
    in_batched: Sequence[bool],
    operands: Sequence[Array],
) -> tuple[list[Array], list[bool]]:
    """One call for each member of a batch."""
    batch = [a for a, is_batched in zip(operands, in_batched, strict=True) if is_batched]

    def one(members: list[Array]) -> list[Array]:
        rest = iter(members)
        return call(*(next(rest) if b else a for a, b in zip(operands, in_batched, strict=True)))

    del size
    results = jax.lax.map(one, batch)
    return results, [True] * len(results)


def _block(layer: SparseLayer) -> dict:
    return {"rows": np.int64(layer.block[0]), "cols": np.int64(layer.block[1])}


def _pair(layers: tuple[SparseLayer, SparseLayer], residual: bool) -> dict:
    blocks = {
        f"{side}{index}": size
        for index, layer in enumerate(layers, 1)
        for side, size in _block(layer).items()
    }
    return {**blocks, "residual": residual}


def _operands(weights: tuple[Weights, Weights], x: Array) -> list[Array]:
    return [operand for w in weights for operand in (w.kernel, _or_empty(w.bias, x), w.kept)]


def _or_empty(bias: Array | None, x: Array) -> Array:
    return jnp.zeros(0, x.dtype) if bias is None else bias
