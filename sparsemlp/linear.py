"""The operation: a linear layer whose products may use a sparse operand."""

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pallas_kernels import Engine, SparseLayer, dense
from sparsemlp.engines import check_engine, choose_engine
from sparsemlp.errors import InputError
from sparsemlp.masks import BlockMask
from sparsemlp.rules import (
    ActivationPooling,
    ActivationPruning,
    Backward,
    GradientPruning,
    check_backward,
    check_built,
)


def sparse_linear(
    x: Float[Array, "..."],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None = None,
    *,
    axis: Literal[-1, -2] = -1,
    mask: BlockMask | None = None,
    backward: Backward = "masked",
    activation: ActivationPruning | ActivationPooling | None = None,
    gradient: GradientPruning | None = None,
    engine: str = "auto",
    rng: PRNGKeyArray | None = None,
) -> Float[Array, "..."]:
    """A linear layer with optional sparsity in its weights.

    With M the mask, dY the gradient of the output, products over the contracted axis
    (Bespalov 2025, its two backward passes, and the straight-through estimator of SR-STE):

    | backward | Y | dX | dW |
    |---|---|---|---|
    | `masked` | X (W∘M) | dY (W∘M)ᵀ | (Xᵀ dY)∘M |
    | `dense` | X (W∘M) | dY Wᵀ | Xᵀ dY |
    | `straight_through` | X (W∘M) | dY (W∘M)ᵀ | Xᵀ dY |

    Args:
      x: `[..., in]`, or `[..., in, channels]` with `axis = -2`.
      kernel: `[in, out]`. x, kernel and bias are brought to their common dtype; products sum in
        float32 at least.
      bias: `[out]`, or None.
      axis: the axis of x that is contracted: -1, features, or -2, tokens, where
        `y[..., o, c] = sum_i kernel[i, o] x[..., i, c] + bias[o]`.
      mask: the kept blocks of the kernel. None, or a mask that keeps every block, is dense: XLA's
        own product, whatever the engine.
      backward: what the two products of the backward pass use.
      activation: rule for the activation that is kept for dW. Not built yet.
      gradient: rule for the output gradient in dX. Not built yet.
      engine: who computes the masked products: `auto`, or a name in `pallas_kernels.ENGINES`.
      rng: key for rules that draw at random. None of those built does.

    Returns:
      `[..., out]`, or `[..., out, channels]` with `axis = -2`.

    Raises:
      InputError: shapes that do not fit each other, or an option that is unknown, not built yet
        or cannot run here.
    """
    check_backward(backward)
    check_engine(engine)
    check_built(activation, gradient)
    _check_shapes(x, kernel, bias, axis, mask)
    del rng
    dtype = jnp.promote_types(x.dtype, kernel.dtype)
    dtype = dtype if bias is None else jnp.promote_types(dtype, bias.dtype)
    x, kernel = x.astype(dtype), kernel.astype(dtype)
    bias = None if bias is None else bias.astype(dtype)
    if mask is None or mask.n_kept == mask.n_blocks:
        return _dense_linear(axis, *varying_alike(x, kernel, bias))
    layer = SparseLayer(mask.kernel_shape, mask.block, mask.n_kept, axis, str(dtype))
    n_rows = x.size // max(1, x.shape[axis])
    products = _Products(
        layer,
        backward,
        choose_engine(engine, layer, "product", n_rows),
        choose_engine(engine, layer, "input_gradient", n_rows),
        choose_engine(engine, layer, "kernel_gradient", n_rows),
    )
    return _masked_linear(products, *varying_alike(x, kernel, bias, mask.kept))


def varying_alike(*operands: Array | None) -> list[Array | None]:
    """Operands that all vary over the mesh axes over which any of them does.

    Under `shard_map` the gradient of a custom rule has to vary as its operand does. A replicated
    kernel beside a sharded x is cast here, and JAX sums the gradient of a cast over its axes.
    """
    vary = [frozenset() if a is None else jax.typeof(a).manual_axis_type.varying for a in operands]
    axes = frozenset[str]().union(*vary)
    return [
        a if a is None or own == axes else jax.lax.pcast(a, tuple(axes - own), to="varying")
        for a, own in zip(operands, vary, strict=True)
    ]


@dataclasses.dataclass(frozen=True)
class _Products:
    """What is static about one masked layer, and who computes its products."""

    layer: SparseLayer
    backward: Backward
    forward: Engine
    input_gradient: Engine
    kernel_gradient: Engine


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _masked_linear(
    products: _Products, x: Array, kernel: Array, bias: Array | None, kept: Array
) -> Array:
    return products.forward.product(x, kernel, bias, kept, products.layer)


def _forward(
    products: _Products, x: Array, kernel: Array, bias: Array | None, kept: Array
) -> tuple[Array, tuple]:
    y = products.forward.product(x, kernel, bias, kept, products.layer)
    return y, (x, kernel, bias, kept)


def _backward(products: _Products, residuals: tuple, dy: Array) -> tuple:
    x, kernel, bias, kept = residuals
    layer, axis = products.layer, products.layer.axis
    if products.backward == "dense":
        dx = dense.input_gradient(dy, kernel, axis)
    else:
        dx = products.input_gradient.input_gradient(dy, kernel, kept, layer)
    if products.backward != "masked":
        dw = dense.kernel_gradient(x, dy, axis)
    elif bias is None:
        return dx, products.kernel_gradient.kernel_gradient(x, dy, kept, layer), None, None
    else:
        return dx, *products.kernel_gradient.parameter_gradients(x, dy, kept, layer), None
    return dx, dw, None if bias is None else dense.bias_gradient(dy, axis), None


_masked_linear.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _dense_linear(axis: Literal[-1, -2], x: Array, kernel: Array, bias: Array | None) -> Array:
    """XLA's product. Its own gradients would sum dW and db over samples in the operands' dtype."""
    return dense.product(x, kernel, bias, axis)


def _dense_forward(
    axis: Literal[-1, -2], x: Array, kernel: Array, bias: Array | None
) -> tuple[Array, tuple]:
    return dense.product(x, kernel, bias, axis), (x, kernel, bias)


def _dense_backward(axis: Literal[-1, -2], residuals: tuple, dy: Array) -> tuple:
    x, kernel, bias = residuals
    dx, dw = dense.input_gradient(dy, kernel, axis), dense.kernel_gradient(x, dy, axis)
    return dx, dw, None if bias is None else dense.bias_gradient(dy, axis)


_dense_linear.defvjp(_dense_forward, _dense_backward)


def _check_shapes(
    x: Array, kernel: Array, bias: Array | None, axis: int, mask: BlockMask | None
) -> None:
    if axis not in (-1, -2):
        raise InputError(f"axis {axis} is neither -1 (features) nor -2 (tokens)")
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
    if mask is not None and mask.kernel_shape != (in_features, out_features):
        raise InputError(
            f"the mask is for a kernel [in, out] = {mask.kernel_shape}, not {kernel.shape}"
        )
