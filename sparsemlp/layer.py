"""A linear layer as a value: its arrays, and the rules of its operands."""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sparsemlp.linear import sparse_linear
from sparsemlp.mask_check import check_mask
from sparsemlp.masks import Mask
from sparsemlp.rules import (
    ActivationPooling,
    ActivationPruning,
    Backward,
    GradientPruning,
    check_backward,
    check_operand_rules,
)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("kernel", "bias", "mask", "rng"),
    meta_fields=("backward", "activation", "gradient"),
)
@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
    """A linear layer: its arrays and its rules, a pytree.

    Attributes:
      kernel: `[in, out]`.
      bias: `[out]`, or None.
      mask: the kept blocks of the kernel; None is dense.
      backward: what the two products of the backward pass use of the mask.
      activation: what is kept of x for the kernel's gradient.
      gradient: how the output's gradient is pruned for that of x.
      rng: key of a gradient rule that draws at random.
    """

    kernel: Any
    bias: Any = None
    mask: Mask | None = None
    backward: Backward = "masked"
    activation: ActivationPruning | ActivationPooling | None = None
    gradient: GradientPruning | None = None
    rng: Any = None

    def __call__(
        self, x: Float[Array, "..."], *, axis: Literal[-1, -2] = -1, engine: str = "auto"
    ) -> Float[Array, "..."]:
        """Applies the layer along an axis of x, as `sparse_linear`."""
        return sparse_linear(
            x,
            self.kernel,
            self.bias,
            axis=axis,
            mask=self.mask,
            backward=self.backward,
            activation=self.activation,
            gradient=self.gradient,
            engine=engine,
            rng=self.rng,
        )

    def check(self) -> None:
        """Raises InputError unless mask, backward and rules are such; the call looks at shapes."""
        check_mask(self.mask)
        check_backward(self.backward)
        check_operand_rules(self.activation, self.gradient)

    @property
    def takes_scales(self) -> bool:
        """Whether scales around this layer can be folded into it without another gradient.

        So it is where dX uses the weights that the forward pass did, and no other rule says what
        is kept of an operand.
        """
        if self.activation is not None or self.gradient is not None:
            return False
        if self.mask is None:
            return True
        return self.backward != "dense" and not self.mask.says_backward

    def kept_kernel(self) -> Float[Array, "in out"]:
        """The kernel with zeros in dropped blocks; its gradient goes where the backward says."""
        if self.mask is None:
            return self.kernel
        keep = _keep_straight_through if self.backward == "straight_through" else _keep
        return keep(self.kernel, self.mask.dense())


def _keep(kernel: Array, mask: Array) -> Array:
    return jnp.where(mask, kernel, jnp.zeros_like(kernel))


_keep_straight_through = jax.custom_vjp(_keep)
_keep_straight_through.defvjp(
    lambda kernel, mask: (_keep(kernel, mask), None), lambda _, gradient: (gradient, None)
)
