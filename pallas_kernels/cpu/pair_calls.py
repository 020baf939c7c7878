"""The native kernels for two layers with a GELU between them as functions of JAX arrays."""

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pallas_kernels.cpu.kernel_calls import at_once, block_options, or_empty, over_rows
from pallas_kernels.neighbours import Neighbours
from pallas_kernels.pruning import Pruning, Scales
from pallas_kernels.sparse_layer import SparseLayer, Weights


def mlp(
    x: Float[Array, "*batch in"],
    weights: tuple[Weights, Weights],
    layers: tuple[SparseLayer, SparseLayer],
    residual: bool,
) -> Float[Array, "*batch out"]:
    """`gelu(x (W1 * M1) + b1) (W2 * M2) + b2`, and x on top if `residual`."""
    shape = (*x.shape[:-1], layers[1].kernel_shape[1])
    call = over_rows("sparsemlp_mlp", shape, tuple(_pair(layers, residual).items()))
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
    call = at_once("sparsemlp_mlp_gradient", shapes, tuple(options.items()))
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
    call = at_once("sparsemlp_pruned_mlp", tuple(shapes), tuple(options.items()), dtypes)
    of_x = [or_empty(scale, x) for scale in scales[:2]]
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
    operands = [*_operands(weights, x), *(or_empty(scale, x) for scale in scales)]
    ids = [jnp.zeros(0, jnp.int32) if own is None else own for own in kept]
    shapes = (x.shape, *(operands[i].shape for i in (0, 1, 3, 4, 6, 7, 8)))
    call = at_once("sparsemlp_pruned_mlp_gradient", shapes, tuple(options.items()))
    dx, dw1, db1, dw2, db2, *d_scales = call(x, dy, *operands, *ids)
    (_, b1, _), (_, b2, _) = weights
    gradients = (
        Weights(dw1, None if b1 is None else db1),
        Weights(dw2, None if b2 is None else db2),
    )
    of_scales = zip(d_scales, scales, strict=True)
    return dx, gradients, Scales(*(None if own is None else d for d, own in of_scales))


def _pair(layers: tuple[SparseLayer, SparseLayer], residual: bool) -> dict:
    blocks = {
        f"{side}{index}": size
        for index, layer in enumerate(layers, 1)
        for side, size in block_options(layer).items()
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
    return [operand for w in weights for operand in (w.kernel, or_empty(w.bias, x), w.kept)]
