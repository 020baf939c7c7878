"""Two layers with a GELU between them whose activations or gradients are pruned, in one go.

The rules are those of Barley & Fröning (arXiv 2311.16883, 2409.11902) for activations and of SDGP
for gradients, as `activations.py` and `gradient_pruning.py` have them for one layer.

The backward pass is given x and the ids of the kept blocks of both activations, nothing else: it
computes the activations again, a few rows at a time, and passes over what was dropped of them.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from pallas_kernels import Engine, Neighbours, SparseLayer, Weights
from pallas_kernels.lists import KeptBlocks, ListedBlocks
from pallas_kernels.pruning import Pruning, Scales
from sparsemlp.activations import named
from sparsemlp.blocks import Block, n_kept_blocks
from sparsemlp.engines import choose_pruned
from sparsemlp.layer import Linear
from sparsemlp.masks import BlockMask
from sparsemlp.pairs import Operands, are_alike
from sparsemlp.ranking import largest
from sparsemlp.rules import ActivationPruning, GradientPruning
from sparsemlp.varying import varying_alike

WHOLE_BLOCK = 32
"""Side of the blocks that a kernel without a mask is cut into where it can be; all are kept."""

_Ids = tuple[Array | ListedBlocks, Array | ListedBlocks]
_Activations = tuple[Int[Array, " k1"] | None, Int[Array, " k2"] | None]


@dataclasses.dataclass(frozen=True)
class _Part:
    """What is static about one of the layers.

    Attributes:
      layer: which blocks its kernel has, all of them kept without a mask.
      pruning: what of its other operands is pruned.
      n_kept: how many blocks of its activation are kept, if those are ranked.
    """

    layer: SparseLayer
    pruning: Pruning
    n_kept: int


@dataclasses.dataclass(frozen=True)
class _Fusion:
    """What is static about the pair, and who computes it."""

    engine: Engine
    layers: tuple[SparseLayer, SparseLayer]
    pruning: tuple[Pruning, Pruning]
    n_kept: tuple[int, int]
    straight_through: bool
    residual: bool


def pruned_mlp(
    x: Array, first: Linear, second: Linear, operands: Operands, residual: bool, engine: str
) -> Array | None:
    """`sparse_mlp` where an engine has one kernel for it; None if it has to be done step by step.

    That is where a layer has an activation rule, other scores than `l2` excepted, or a gradient
    rule that draws nothing at random, and masks have the masked or the straight-through backward.

    Args:
      x: `[..., in]`.
      first: the first layer.
      second: the second layer.
      operands: of both.
      residual: whether x is added.
      engine: `auto`, or a name in `pallas_kernels.ENGINES`.
    """
    fusion = _fusion(x, first, second, operands, residual, engine)
    if fusion is None:
        return None
    linears = zip((first, second), fusion.layers, strict=True)
    kept = tuple(_kept_of(fusion.engine, linear, layer) for linear, layer in linears)
    return _fused(fusion, *varying_alike((x, kept, operands)))


def _fusion(
    x: Array, first: Linear, second: Linear, operands: Operands, residual: bool, engine: str
) -> _Fusion | None:
    if not are_alike(x, operands) or not x.size:
        return None
    backwards = {linear.backward for linear in (first, second) if _is_masked(linear)}
    if len(backwards) > 1 or "dense" in backwards:
        return None
    one, other = _part_of(first, x), _part_of(second, x)
    if one is None or other is None or one.pruning == other.pruning == Pruning():
        return None
    layers, pruning = (one.layer, other.layer), (one.pruning, other.pruning)
    straight_through = backwards == {"straight_through"}
    n_rows = math.prod(x.shape[:-1])
    chosen = choose_pruned(engine, layers, pruning, straight_through, n_rows)
    if chosen is None:
        return None
    n_kept = (one.n_kept, other.n_kept)
    return _Fusion(chosen, layers, pruning, n_kept, straight_through, residual)


def _is_masked(linear: Linear) -> bool:
    return linear.mask is not None and not linear.mask.keeps_all


def _part_of(linear: Linear, x: Array) -> _Part | None:
    """The layer and its rules; None where no engine has a kernel for them.

    Blocks, windows and groups that divide nothing are left to the layer, which refuses them.
    """
    layer = _layer_of(linear, str(x.dtype))
    found = _activation_of(linear, x)
    gradient = _gradient_of(linear.gradient, linear.kernel.shape[1])
    if layer is None or found is None or gradient is None:
        return None
    blocks, pools, n_kept = found
    if gradient.n == gradient.m:
        return _Part(layer, Pruning(blocks, pools), n_kept)
    positions = math.prod(x.shape[1:-1]) if gradient.rescaled else 0
    return _Part(layer, Pruning(blocks, pools, gradient, positions), n_kept)


def _layer_of(linear: Linear, dtype: str) -> SparseLayer | None:
    """The layer as blocks; None of a mask whose size is data, or of another kernel."""
    n_in, n_out = linear.kernel.shape
    mask = linear.mask
    if mask is not None and mask.kernel_shape != (n_in, n_out):
        return None
    if not _is_masked(linear):
        block = _side(n_out), _side(n_in)
        return SparseLayer((n_in, n_out), block, n_in * n_out // math.prod(block), -1, dtype)
    if not isinstance(mask, BlockMask):
        return None
    return mask.sparse_layer(-1, dtype)


def _side(length: int) -> int:
    """Of the blocks of a whole kernel; all of it where nothing near a vector divides it."""
    side = math.gcd(length, WHOLE_BLOCK)
    return side if side >= WHOLE_BLOCK // 2 else length


def _activation_of(linear: Linear, x: Array) -> tuple[Block | None, bool, int] | None:
    """Blocks or windows, None where all is kept; whether they are windows; how many are kept."""
    rule, n_in = linear.activation, linear.kernel.shape[0]
    if rule is None:
        return None, False, 0
    if isinstance(rule, ActivationPruning):
        n_rows = math.prod(x.shape[:-1])
        if rule.score != "l2" or n_rows % rule.block[0] or n_in % rule.block[1]:
            return None
        n_blocks = n_rows * n_in // math.prod(rule.block)
        k = n_kept_blocks(n_blocks, rule.ratio)
        return (None, False, 0) if k == n_blocks else (rule.block, False, k)
    tokens = x.shape[-2] if x.ndim > 2 else 1
    if tokens % rule.window[0] or n_in % rule.window[1]:
        return None
    return (None, False, 0) if rule.window == (1, 1) else (rule.window, True, 0)


def _gradient_of(rule: GradientPruning | None, n_out: int) -> Neighbours | None:
    """Which neighbours are kept; n = m without a rule."""
    if rule is None:
        return Neighbours(1, 1)
    if rule.method == "random" or n_out % rule.m:
        return None
    return Neighbours(rule.n, rule.m, rule.method == "rescaled")


def _kept_of(engine: Engine, linear: Linear, layer: SparseLayer) -> KeptBlocks:
    if _is_masked(linear) and isinstance(linear.mask, BlockMask):
        return engine.taken(linear.mask.kept_blocks)
    return jnp.arange(layer.n_kept, dtype=jnp.int32)


def _arguments(kept: _Ids, operands: Operands) -> tuple[tuple[Weights, Weights], Scales]:
    weights = (
        Weights(operands.kernel1, operands.bias1, kept[0]),
        Weights(operands.kernel2, operands.bias2, kept[1]),
    )
    return weights, Scales(*(operands.before or (None, None)), operands.after)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(fusion: _Fusion, x: Array, kept: _Ids, operands: Operands) -> Array:
    nothing = (Pruning(), Pruning())
    arguments = _arguments(kept, operands)
    return fusion.engine.pruned_mlp(x, *arguments, fusion.layers, nothing, fusion.residual)[0]


def _forward(
    fusion: _Fusion, x: Array, kept: _Ids, operands: Operands
) -> tuple[Array, tuple[Array, _Ids, _Activations, Operands]]:
    y, norms = fusion.engine.pruned_mlp(
        x, *_arguments(kept, operands), fusion.layers, fusion.pruning, fusion.residual
    )
    first, second = (
        None if norm is None else named(largest(norm.reshape(-1), k))
        for norm, k in zip(norms, fusion.n_kept, strict=True)
    )
    return y, (x, kept, (first, second), operands)


def _backward(
    fusion: _Fusion, residuals: tuple[Array, _Ids, _Activations, Operands], dy: Array
) -> tuple[Array, None, Operands]:
    x, kept, of_activations, operands = residuals
    weights, scales = _arguments(kept, operands)
    dx, (first, second), d_scales = fusion.engine.pruned_mlp_gradients(
        x,
        dy,
        weights,
        scales,
        of_activations,
        fusion.layers,
        fusion.pruning,
        fusion.residual,
        fusion.straight_through,
    )
    before = None if operands.before is None else (d_scales.scale, d_scales.shift)
    return dx, None, Operands(*first[:2], *second[:2], before, d_scales.after)


_fused.defvjp(_forward, _backward)
