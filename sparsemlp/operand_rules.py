"""The rules of one layer for its activation and its output gradient, and the products with them."""

import dataclasses
import functools
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels import ENGINES, Engine, dense
from sparsemlp.activations import CompactActivation, compact
from sparsemlp.engines import choose_unmasked
from sparsemlp.gradient_pruning import prune_gradient, pruned_input_gradient
from sparsemlp.rules import ActivationPooling, ActivationPruning, GradientPruning


@dataclasses.dataclass(frozen=True)
class OperandRules:
    """What is static about a layer besides its mask.

    Attributes:
      axis: the axis of x that is contracted.
      activation: what is kept of x, if not all.
      gradient: how dY is pruned, if at all.
      engine: who computes the products with what is kept or pruned.
    """

    axis: Literal[-1, -2]
    activation: ActivationPruning | ActivationPooling | None = None
    gradient: GradientPruning | None = None
    engine: Engine = ENGINES["reference"]

    def keep(self, x: Array) -> Array | CompactActivation:
        """What the backward pass is given of x."""
        if self.activation is None:
            return x
        kept = compact(x, self.activation, self.axis, self.engine)
        return x if kept is None else kept

    def prune(self, dy: Array, rng: Array | None) -> Array:
        """What dX is computed from."""
        if self.gradient is None:
            return dy
        return prune_gradient(dy, self.gradient, self.engine, axis=self.axis, rng=rng)

    def input_gradient(self, dy: Array, kernel: Array, rng: Array | None) -> Array:
        """The gradient of x with a whole kernel."""
        if self.gradient is None:
            return dense.input_gradient(dy, kernel, self.axis)
        return pruned_input_gradient(
            dy, kernel, self.gradient, self.engine, axis=self.axis, rng=rng
        )

    def kernel_gradient(self, kept: Array | CompactActivation, dy: Array) -> Array:
        """The gradient of a whole kernel, from what was kept of x."""
        if isinstance(kept, CompactActivation):
            return kept.kernel_gradient(dy, self.engine)
        return dense.kernel_gradient(kept, dy, self.axis)


def of_one_dtype(x: Array, kernel: Array, bias: Array | None) -> tuple[Array, Array, Array | None]:
    """The operands of a layer as arrays of JAX, in their common dtype.

    Numbers of NumPy have 64 bits, which those of JAX have only if it is told so.
    """
    operands = [jnp.asarray(each) for each in (x, kernel, *(() if bias is None else (bias,)))]
    dtype = functools.reduce(jnp.promote_types, (each.dtype for each in operands))
    x, kernel, *rest = (each.astype(dtype) for each in operands)
    return x, kernel, rest[0] if rest else None


def operand_rules(
    axis: Literal[-1, -2],
    activation: ActivationPruning | ActivationPooling | None,
    gradient: GradientPruning | None,
    engine: str,
    kernel_shape: tuple[int, int],
    dtype: str,
) -> OperandRules:
    """The rules of a layer, and the engine for what they prune.

    Args:
      axis: the axis of x that is contracted.
      activation: what is kept of x, if not all.
      gradient: how dY is pruned, if at all.
      engine: `auto`, or a name in `pallas_kernels.ENGINES`.
      kernel_shape: `(in, out)`.
      dtype: of the operands.

    Raises:
      InputError: the engine does not exist, or cannot compute this layer on this platform.
    """
    if activation is None and gradient is None:
        return OperandRules(axis)
    chosen = choose_unmasked(engine, kernel_shape, dtype)
    return OperandRules(axis, activation, gradient, chosen)
