"""The products of one linear layer whose operands may be sparse."""

import dataclasses
from typing import Literal

from jaxtyping import Array

from pallas_kernels import ENGINES, Engine, dense
from sparsemlp.activations import CompactActivation, compact
from sparsemlp.differentiable import Layer
from sparsemlp.gradient_pruning import prune_gradient, pruned_input_gradient
from sparsemlp.masked_kernel import MaskedKernel
from sparsemlp.rules import ActivationPooling, ActivationPruning, GradientPruning


@dataclasses.dataclass(frozen=True)
class LinearLayer(Layer):
    """What is static about a linear layer besides its mask.

    Without a mask the products are XLA's, of which dW and db are summed in float32 at least: those
    that JAX derives would be summed over samples in the operands' dtype.

    Attributes:
      axis: the axis of x that is contracted.
      activation: what is kept of x, if not all.
      gradient: how dY is pruned for dX, if at all.
      engine: who prunes x and dY, and multiplies what is left with whole kernels.
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

    def product(
        self, x: Array, kernel: Array, bias: Array | None, masked: MaskedKernel | None
    ) -> Array:
        """The output."""
        if masked is None:
            return dense.product(x, kernel, bias, self.axis)
        own = masked.engines.product
        return own.product(x, kernel, bias, masked.kept.product, masked.matrix)

    def input_gradient(
        self, dy: Array, kernel: Array, masked: MaskedKernel | None, rng: Array | None
    ) -> Array:
        """The gradient of x."""
        rule, axis = self.gradient, self.axis
        if masked is not None and masked.backward != "dense":
            own = masked.engines.input_gradient
            if rule is not None:
                dy = prune_gradient(dy, rule, self.engine, axis=axis, rng=rng)
            return own.input_gradient(dy, kernel, masked.kept.input_gradient, masked.matrix)
        if rule is not None:
            return pruned_input_gradient(dy, kernel, rule, self.engine, axis=axis, rng=rng)
        return dense.input_gradient(dy, kernel, axis)

    def parameter_gradients(
        self,
        kept: Array | CompactActivation,
        dy: Array,
        masked: MaskedKernel | None,
        *,
        has_bias: bool,
    ) -> tuple[Array, Array | None]:
        """The gradients of the kernel and of the bias, from what was kept of x."""
        if masked is not None and masked.backward != "masked":
            masked = None  # dW is that of a whole kernel
        if isinstance(kept, CompactActivation):
            dw = kept.kernel_gradient(dy, self.engine)
            dw = dw if masked is None else masked.zero_dropped(dw)
        elif masked is None:
            dw = dense.kernel_gradient(kept, dy, self.axis)
        else:
            own, blocks = masked.engines.kernel_gradient, masked.kept.kernel_gradient
            if has_bias:
                return own.parameter_gradients(kept, dy, blocks, masked.matrix)
            dw = own.kernel_gradient(kept, dy, blocks, masked.matrix)
        return dw, dense.bias_gradient(dy, self.axis) if has_bias else None
