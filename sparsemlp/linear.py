"""The operation: a linear layer each of whose three products may use a sparse operand."""

import dataclasses
import functools
import numbers
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pallas_kernels import Engine, SparseLayer, dense, layout
from sparsemlp.activations import CompactActivation
from sparsemlp.engines import check_engine, choose_engine, choose_for_grid
from sparsemlp.errors import InputError
from sparsemlp.gradient_pruning import check_groups
from sparsemlp.masks import GridMask, KeptByProduct, Mask, check_mask
from sparsemlp.operand_rules import OperandRules, of_one_dtype, operand_rules
from sparsemlp.rules import (
    ActivationPooling,
    ActivationPruning,
    Backward,
    GradientPruning,
    check_backward,
    check_operand_rules,
)
from sparsemlp.varying import varying_alike


def sparse_linear(
    x: Float[Array, "..."],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None = None,
    *,
    axis: Literal[-1, -2] = -1,
    mask: Mask | None = None,
    backward: Backward = "masked",
    activation: ActivationPruning | ActivationPooling | None = None,
    gradient: GradientPruning | None = None,
    engine: str = "auto",
    rng: PRNGKeyArray | None = None,
) -> Float[Array, "..."]:
    """A linear layer with optional sparsity in each of its operands.

    With M the mask, dY the gradient of the output, X' what is kept of X and dY' the pruned dY,
    products over the contracted axis:

    | backward | Y | dX | dW |
    |---|---|---|---|
    | `masked` | X (W∘M) | dY' (W∘M)ᵀ | (X'ᵀ dY)∘M |
    | `dense` | X (W∘M) | dY' Wᵀ | X'ᵀ dY |
    | `straight_through` | X (W∘M) | dY' (W∘M)ᵀ | X'ᵀ dY |

    The three rules are independent: no mask is W, no activation rule X' = X, no gradient rule
    dY' = dY. The backward passes are the two of Bespalov 2025 and the straight-through estimator
    of SR-STE; the activation rules those of Barley & Fröning (arXiv 2311.16883, 2409.11902), the
    gradient rule that of McDanel, Dinh and Magallanes (SDGP). db is the sum of dY.

    It is differentiated once and in reverse. Second derivatives of layers with a mask or a rule
    need the engine `reference`; there is no forward mode (`jax.jvp`).

    Args:
      x: `[..., in]`, or `[..., in, channels]` with `axis = -2`.
      kernel: `[in, out]`. x, kernel and bias are brought to their common dtype; products sum in
        float32 at least.
      bias: `[out]`, or None.
      axis: the axis of x that is contracted: -1, features, or -2, tokens, where
        `y[..., o, c] = sum_i kernel[i, o] x[..., i, c] + bias[o]`.
      mask: the kept blocks of the kernel. None, or a mask that keeps every block, is dense: XLA's
        own product, whatever the engine. A `GridMask` is for the engine `reference` alone, which
        `auto` then is.
      backward: what the two products of the backward pass use; a `GridMask` may say it instead.
      activation: what is kept of x for dW. Nothing else of x survives to the backward pass.
      gradient: how dY is pruned for dX.
      engine: who computes the masked products: `auto`, or a name in `pallas_kernels.ENGINES`. Only
        `reference` has second derivatives, and programs that `jax.export` can write.
      rng: key of the gradient method `random`. It may be missing where nothing is differentiated.

    Returns:
      `[..., out]`, or `[..., out, channels]` with `axis = -2`.

    Raises:
      InputError: shapes that do not fit each other, groups that do not divide the outputs, an
        option that is unknown or cannot run here; when differentiated, also blocks or windows that
        do not divide x, or a missing key.
    """
    check_backward(backward)
    check_operand_rules(activation, gradient)
    check_engine(engine)
    x, kernel, bias = of_one_dtype(x, kernel, bias)
    _check_shapes(x, kernel, bias, axis, mask)
    if gradient is not None:
        check_groups(gradient, kernel.shape[1])
    shape, dtype = (kernel.shape[0], kernel.shape[1]), str(kernel.dtype)
    rules = operand_rules(axis, activation, gradient, engine, shape, dtype)
    if mask is None or mask.keeps_all:
        return _dense_linear(rules, *varying_alike(x, kernel, bias), rng)
    if isinstance(mask, GridMask):
        layer = SparseLayer(mask.kernel_shape, mask.block, mask.n_blocks, axis, dtype)
        engines = (choose_for_grid(engine),) * 3
        backward = "masked" if mask.says_backward else backward
    else:
        layer = SparseLayer(mask.kernel_shape, mask.block, mask.n_kept, axis, dtype)
        n_rows = x.size // max(1, x.shape[axis])
        engines = (
            choose_engine(engine, layer, "product", n_rows),
            choose_engine(engine, layer, "input_gradient", n_rows),
            choose_engine(engine, layer, "kernel_gradient", n_rows),
        )
    products = _Products(rules, layer, backward, *engines)
    by_engine = zip(engines, mask.by_product, strict=True)
    kept = KeptByProduct(*(engine.taken(blocks) for engine, blocks in by_engine))
    operands, structure = jax.tree.flatten((x, kernel, bias, kept))
    operands = jax.tree.unflatten(structure, varying_alike(*operands))
    return _masked_linear(products, *operands, rng)


@dataclasses.dataclass(frozen=True)
class _Products:
    """What is static about one masked layer, and who computes its products."""

    rules: OperandRules
    layer: SparseLayer
    backward: Backward
    y_engine: Engine
    dx_engine: Engine
    dw_engine: Engine


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _masked_linear(
    products: _Products,
    x: Array,
    kernel: Array,
    bias: Array | None,
    kept: KeptByProduct,
    rng: Array | None,
) -> Array:
    del rng
    return products.y_engine.product(x, kernel, bias, kept.product, products.layer)


def _forward(
    products: _Products,
    x: Array,
    kernel: Array,
    bias: Array | None,
    kept: KeptByProduct,
    rng: Array | None,
) -> tuple[Array, tuple]:
    y = products.y_engine.product(x, kernel, bias, kept.product, products.layer)
    return y, (products.rules.keep(x), kernel, bias, kept, rng)


def _backward(products: _Products, residuals: tuple, dy: Array) -> tuple:
    x, kernel, bias, kept, rng = residuals
    layer, axis = products.layer, products.layer.axis
    if products.backward == "dense":
        dx = products.rules.input_gradient(dy, kernel, rng)
    else:
        pruned = products.rules.prune(dy, rng)
        dx = products.dx_engine.input_gradient(pruned, kernel, kept.input_gradient, layer)
    if products.backward != "masked":
        dw = products.rules.kernel_gradient(x, dy)
    elif isinstance(x, CompactActivation):
        mask = layout.dense_mask(kept.kernel_gradient, layer.kernel_shape, layer.block)
        dw = jnp.where(mask, products.rules.kernel_gradient(x, dy), 0)
    elif bias is None:
        dw = products.dw_engine.kernel_gradient(x, dy, kept.kernel_gradient, layer)
    else:
        of_both = products.dw_engine.parameter_gradients
        return dx, *of_both(x, dy, kept.kernel_gradient, layer), None, None
    return dx, dw, None if bias is None else dense.bias_gradient(dy, axis), None, None


_masked_linear.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _dense_linear(
    rules: OperandRules, x: Array, kernel: Array, bias: Array | None, rng: Array | None
) -> Array:
    """XLA's product. Its own gradients would sum dW and db over samples in the operands' dtype."""
    del rng
    return dense.product(x, kernel, bias, rules.axis)


def _dense_forward(
    rules: OperandRules, x: Array, kernel: Array, bias: Array | None, rng: Array | None
) -> tuple[Array, tuple]:
    return dense.product(x, kernel, bias, rules.axis), (rules.keep(x), kernel, bias, rng)


def _dense_backward(rules: OperandRules, residuals: tuple, dy: Array) -> tuple:
    x, kernel, bias, rng = residuals
    dx = rules.input_gradient(dy, kernel, rng)
    dw = rules.kernel_gradient(x, dy)
    return dx, dw, None if bias is None else dense.bias_gradient(dy, rules.axis), None


_dense_linear.defvjp(_dense_forward, _dense_backward)


def check_axis(axis: object) -> None:
    """Raises InputError unless a layer can contract this axis."""
    if not isinstance(axis, numbers.Integral) or axis not in (-1, -2):
        raise InputError(f"axis {axis} is neither -1 (features) nor -2 (tokens)")


def _check_shapes(
    x: Array, kernel: Array, bias: Array | None, axis: int, mask: Mask | None
) -> None:
    check_axis(axis)
    if kernel.ndim != 2:
        raise InputError(f"kernel of shape {kernel.shape} is not [in, out]")
    in_features, out_features = kernel.shape
    if x.ndim < -axis or x.shape[axis] != in_features:
        raise InputError(
            f"x of shape {x.shape} does not fit the kernel [in, out] = {in_features}x"
            f"{out_features}: its axis {axis} must have {in_features} entries"
        )
    if bias is not None and bias.shape != (out_features,):
        raise InputError(f"bias of shape {bias.shape} does not fit {out_features} outputs")
    check_mask(mask)
    if mask is not None and mask.kernel_shape != (in_features, out_features):
        raise InputError(
            f"the mask is for a kernel [in, out] = {mask.kernel_shape}, not {kernel.shape}"
        )
