"""A layer and its gradients: what of its operands survives to the backward pass."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from sparsemlp.masked_kernel import MaskedKernel
from sparsemlp.varying import varying_alike


class Layer(abc.ABC):
    """What is static about a layer, hashable, and its three products.

    Shapes are those of the layer; x, kernel, bias, dY and all results have one dtype.
    """

    @abc.abstractmethod
    def keep(self, x: Array) -> Any:
        """What the backward pass is given of x: any pytree."""

    @abc.abstractmethod
    def product(
        self, x: Array, kernel: Array, bias: Array | None, masked: MaskedKernel | None
    ) -> Array:
        """The output Y."""

    @abc.abstractmethod
    def input_gradient(
        self, dy: Array, kernel: Array, masked: MaskedKernel | None, rng: Array | None
    ) -> Array:
        """The gradient dX, of dY as the layer's rule prunes it."""

    @abc.abstractmethod
    def parameter_gradients(
        self, kept: Any, dy: Array, masked: MaskedKernel | None, *, has_bias: bool
    ) -> tuple[Array, Array | None]:
        """The gradients dW and, if there is a bias, db, from what was kept of x."""


def differentiable(
    layer: Layer,
    x: Array,
    kernel: Array,
    bias: Array | None,
    masked: MaskedKernel | None,
    rng: Array | None,
) -> Array:
    """The output of a layer whose gradients are the layer's own.

    Args:
      layer: what is static about it.
      x: its input.
      kernel: its weights.
      bias: `[out]`, or None.
      masked: the kept blocks of the kernel, and who multiplies them; None: it is whole.
      rng: key of a gradient rule that draws at random.

    Returns:
      `layer.product` of these operands.

    Raises:
      InputError: an operand is sharded over explicit axes; or as the layer's own products.
    """
    return _call(layer, *varying_alike((x, kernel, bias, masked, rng)))


def _product(
    layer: Layer,
    x: Array,
    kernel: Array,
    bias: Array | None,
    masked: MaskedKernel | None,
    rng: Array | None,
) -> Array:
    """The output, which `jax.vmap` maps where it maps a key or the grids of the backward pass.

    These alone may be mapped. The output would then be one for all, and JAX would hand the backward
    pass of each the sum of all cotangents. XLA drops a choice between equals.
    """
    y = layer.product(x, kernel, bias, masked)
    # Kept ids are one array for all products; of grids those of the backward pass may be others.
    only_backward = [a.ravel() for a in jax.tree.leaves(masked) if a.dtype == bool]
    if rng is not None:
        only_backward.append(jax.random.key_data(rng).ravel())
    for own in only_backward:
        y = jnp.where(own[0] == 0, y, y)
    return y


def _forward(layer: Layer, *operands: Any) -> tuple[Array, tuple]:
    x, *rest = operands
    return _product(layer, *operands), (layer.keep(x), *rest)


def _backward(layer: Layer, residuals: tuple, dy: Array) -> tuple:
    kept, kernel, bias, masked, rng = residuals
    dx = layer.input_gradient(dy, kernel, masked, rng)
    dw, db = layer.parameter_gradients(kept, dy, masked, has_bias=bias is not None)
    return dx, dw, db, None, None


_call = jax.custom_vjp(_product, nondiff_argnums=(0,))
_call.defvjp(_forward, _backward)
