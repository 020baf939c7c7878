"""The operation: a linear layer each of whose three products may use a sparse operand."""

import functools
import numbers
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pallas_kernels import ENGINES
from sparsemlp.differentiable import differentiable
from sparsemlp.engines import check_engine, choose_engine, choose_unmasked
from sparsemlp.errors import InputError
from sparsemlp.gradient_pruning import check_groups, key_of
from sparsemlp.linear_layer import LinearLayer
from sparsemlp.mask_check import check_mask
from sparsemlp.masked_kernel import masked_kernel
from sparsemlp.masks import Mask
from sparsemlp.rules import (
    ActivationPooling,
    ActivationPruning,
    Backward,
    GradientPruning,
    check_backward,
    check_operand_rules,
)


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

    Give samples as leading axes of x: under `jax.vmap` over x each has a dW of its own, and these
    are added up. Of engines other than `reference` XLA partitions nothing: where x is sharded over
    automatic axes of a mesh every device computes all of it, unless `jax.shard_map` is around.

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
    dtype, n_rows = str(kernel.dtype), x.size // max(1, x.shape[axis])
    pruning = ENGINES["reference"]
    if activation is not None or gradient is not None:
        pruning = choose_unmasked(engine, (kernel.shape[0], kernel.shape[1]), dtype)
    choose = functools.partial(choose_engine, n_rows=n_rows)
    masked = masked_kernel(mask, axis, dtype, backward, engine, choose)
    layer = LinearLayer(axis, activation, gradient, pruning)
    return differentiable(layer, x, kernel, bias, masked, key_of(gradient, rng))


def of_one_dtype(x: Array, kernel: Array, bias: Array | None) -> tuple[Array, Array, Array | None]:
    """The operands of a layer as arrays of JAX, in the dtype that their product has.

    Numbers of NumPy have 64 bits, which those of JAX have only if it is told so.
    """
    operands = [jnp.asarray(each) for each in (x, kernel, *(() if bias is None else (bias,)))]
    dtype = jnp.result_type(*operands)
    x, kernel, *rest = (each.astype(dtype) for each in operands)
    return x, kernel, rest[0] if rest else None


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
