"""Two sparse linear layers with a GELU between them, fused where an engine can."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import Engine, SparseLayer, Weights
from pallas_kernels.lists import KeptBlocks, ListedBlocks
from sparsemlp.engines import choose_fused
from sparsemlp.errors import InputError
from sparsemlp.gelu import gelu
from sparsemlp.layer import Linear
from sparsemlp.masks import BlockMask
from sparsemlp.pairs import Operands, are_alike
from sparsemlp.pruned_mlp import pruned_mlp
from sparsemlp.spread import scaled, spread
from sparsemlp.varying import varying_alike


def sparse_mlp(
    x: Float[Array, "*batch in"],
    first: Linear,
    second: Linear,
    *,
    before: tuple[Float[Array, " in"], Float[Array, " in"]] | None = None,
    after: Float[Array, " out"] | None = None,
    residual: bool = False,
    engine: str = "auto",
) -> Float[Array, "*batch out"]:
    """`after * second(gelu(first(scale * x + shift)))`, and x on top if `residual`.

    The branch of channel mixing of a ResMLP (Touvron et al., arXiv 2105.03404, equation 3). Where
    an engine fuses it, with the masked or the straight-through backward, hidden activations are not
    kept for the backward pass, which computes them again from x, and mostly not written to memory;
    scales are folded into the kernels where no rule needs what they scale, and sums are taken in
    another order, so results differ by rounding. Of activations that a rule prunes the ids of the
    kept blocks are kept (`pruned_mlp`).

    Args:
      x: `[..., in]`.
      first: from `in` to the hidden features.
      second: from the hidden features to `out`.
      before: `(scale, shift)` of x.
      after: scale of the result.
      residual: whether x is added, `in` being `out`.
      engine: who computes: `auto`, or a name in `pallas_kernels.ENGINES`.

    Returns:
      `[..., out]`.

    Raises:
      InputError: as `sparse_linear`; or x is to be added to a result of another width.
    """
    n_out = second.kernel.shape[-1]
    if residual and x.shape[-1] != n_out:
        raise InputError(
            f"x of shape {x.shape} cannot be added to a result of {n_out} features: "
            "make both widths equal, or set residual=False"
        )
    for layer in (first, second):
        layer.check()
    x, operands = jax.tree.map(_as_array, (x, Operands.of(first, second, before, after)))
    fusion = _fusion(x, first, second, operands, engine)
    if fusion is None:
        pruned = pruned_mlp(x, first, second, operands, residual, engine)
        if pruned is not None:
            return pruned
        y = x if before is None else scaled(x, before[0]) + spread(before[1], x)
        with jax.named_scope("first"):
            y = gelu(first(y, engine=engine))
        with jax.named_scope("second"):
            y = second(y, engine=engine)
        y = y if after is None else scaled(y, after)
        return x + y if residual else y
    kept = _kept_of(fusion.engine, first, second)
    fusion = dataclasses.replace(fusion, residual=residual)
    return _fused(fusion, *varying_alike((x, kept, operands)))


def _as_array(a: Any) -> Array:
    return a if isinstance(a, jax.Array) else jnp.asarray(a)


_Kept = tuple[Array | ListedBlocks, Array | ListedBlocks]
_Plain = tuple[Array, Array | None]


def _kept_of(engine: Engine, *layers: Linear) -> tuple[KeptBlocks, ...]:
    masks = [layer.mask for layer in layers if isinstance(layer.mask, BlockMask)]
    return tuple(engine.taken(mask.kept_blocks) for mask in masks)


def _fold_before(layer: Linear, scale: Array, shift: Array) -> Linear:
    """The layer that does the same to x as this one does to `scale * x + shift`."""
    kept = layer.kept_kernel()
    shifted = jnp.sum(scaled(kept, shift[:, None]), axis=0)
    bias = shifted if layer.bias is None else layer.bias + shifted
    return dataclasses.replace(layer, kernel=scaled(kept, scale[:, None]), bias=bias)


@dataclasses.dataclass(frozen=True)
class _Fusion:
    """What is static about a fused pair of layers, and who computes it."""

    engine: Engine
    layers: tuple[SparseLayer, SparseLayer]
    straight_through: bool
    residual: bool = False

    def fold(self, kept: _Kept, operands: Operands) -> tuple[_Plain, _Plain]:
        """Kernels and biases of both layers with the scales folded into them."""
        backward = "straight_through" if self.straight_through else "masked"
        arrays = ((operands.kernel1, operands.bias1), (operands.kernel2, operands.bias2))
        first, second = (
            Linear(*own, BlockMask.of(blocks, layer.kernel_shape, layer.block), backward)
            for own, blocks, layer in zip(arrays, kept, self.layers, strict=True)
        )
        if operands.before is not None:
            first = _fold_before(first, *operands.before)
        if operands.after is not None:
            bias = None if second.bias is None else second.bias * operands.after
            kernel = scaled(second.kept_kernel(), operands.after)
            second = dataclasses.replace(second, kernel=kernel, bias=bias)
        return (first.kernel, first.bias), (second.kernel, second.bias)


def _fusion(
    x: Array, first: Linear, second: Linear, operands: Operands, engine: str
) -> _Fusion | None:
    """Who can compute the pair in one go; None if it has to be done step by step."""
    layers: list[SparseLayer] = []
    alike = are_alike(x, operands)
    for linear in (first, second):
        mask = linear.mask
        if not isinstance(mask, BlockMask) or mask.keeps_all or not linear.takes_scales:
            return None
        if not alike or mask.kernel_shape != linear.kernel.shape:
            return None
        layers.append(mask.sparse_layer(-1, str(x.dtype)))
    if first.backward != second.backward:
        return None
    pair, straight_through = (layers[0], layers[1]), first.backward == "straight_through"
    phase = "straight_through_mlp" if straight_through else "mlp"
    chosen = choose_fused(engine, pair, x.size // max(1, x.shape[-1]), phase)
    return None if chosen is None else _Fusion(chosen, pair, straight_through)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(fusion: _Fusion, x: Array, kept: _Kept, operands: Operands) -> Array:
    first, second = fusion.fold(kept, operands)
    weights = (Weights(*first, kept[0]), Weights(*second, kept[1]))
    return fusion.engine.mlp(x, weights, fusion.layers, fusion.residual)


def _forward(
    fusion: _Fusion, x: Array, kept: _Kept, operands: Operands
) -> tuple[Array, tuple[Array, _Kept, Operands]]:
    return _fused(fusion, x, kept, operands), (x, kept, operands)


def _backward(
    fusion: _Fusion, residuals: tuple[Array, _Kept, Operands], dy: Array
) -> tuple[Array, None, Operands]:
    """Folds the scales again: folded kernels would stay in memory, however few rows x has.

    Lists of kept blocks are small, and what is computed of them is so once for all layers alike.
    """
    x, kept, operands = residuals
    x, operands, dy = jax.lax.optimization_barrier((x, operands, dy))
    (first, second), unfold = jax.vjp(functools.partial(fusion.fold, kept), operands)
    compute = fusion.engine.mlp_gradients
    if fusion.straight_through:
        compute = fusion.engine.straight_through_gradients
    weights = (Weights(*first, kept[0]), Weights(*second, kept[1]))
    dx, (d_first, d_second) = compute(x, dy, weights, fusion.layers, fusion.residual)
    return dx, None, *unfold((tuple(d_first[:2]), tuple(d_second[:2])))


_fused.defvjp(_forward, _backward)
