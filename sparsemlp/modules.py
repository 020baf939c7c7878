"""Flax Linen layers: the sparse linear layer and the small parts of a ResMLP."""

from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict
from flax.linen.dtypes import canonicalize_dtype, promote_dtype
from jaxtyping import Array, Float

from sparsemlp.errors import InputError
from sparsemlp.layer import Linear
from sparsemlp.linear import check_axis
from sparsemlp.module_plan import frozen_plan, gradient_key, mask_of, rules_of
from sparsemlp.plan import Plan
from sparsemlp.spread import scaled, spread
from sparsemlp.varying import draw_part


class SparseDense(nn.Module):
    """A drop-in for `flax.linen.Dense` that obeys a plan.

    It has the arguments of that one but for precision, which `jax_default_matmul_precision` says,
    and what promotes dtypes and computes products; give all but the first by name. As of every
    function with a rule of its own for the backward pass, JAX takes no derivative of it forward.

    Its mask comes in as the variable `kernel` of the collection `masks`; without one the layer is
    dense, so `init` gives plain parameters, and `nn.scan` or `nn.vmap` over layers has to have
    `masks` among its `variable_axes`. The other rules, and how the backward pass uses the mask, are
    said by the plan, under the path of this layer's kernel: without a plan as `masked`. The
    gradient method `random` draws from the random stream `gradient`.

    Attributes:
      features: number of outputs.
      use_bias: whether to add a bias.
      axis: the axis that is contracted: -1, features, or -2, tokens.
      plan: which parameter gets which rules; the layer looks up its own path.
      engine: who computes the masked products.
      dtype: dtype of the computation; None infers it from input and parameters.
      param_dtype: dtype of the parameters.
      kernel_init: initializer of the kernel `[in, out]`.
      bias_init: initializer of the bias `[out]`.
    """

    features: int
    use_bias: bool = True
    axis: Literal[-1, -2] = -1
    plan: Plan = FrozenDict()
    engine: str = "auto"
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Callable[..., Array] = nn.initializers.lecun_normal()
    bias_init: Callable[..., Array] = nn.initializers.zeros_init()

    def __post_init__(self) -> None:
        self.plan = frozen_plan(self.plan)
        super().__post_init__()

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Maps `[..., in]` to `[..., features]`, or `[..., in, c]` to `[..., features, c]`."""
        x = jnp.asarray(x)
        check_axis(self.axis)
        if x.ndim < -self.axis:
            raise InputError(f"x of shape {x.shape} has no axis {self.axis} to contract")
        layer = self.weights(x.shape[self.axis], x)
        return layer(x.astype(layer.kernel.dtype), axis=self.axis, engine=self.engine)

    @nn.compact
    def weights(self, in_features: int, x: Array) -> Linear:
        """Kernel, bias, mask and rules of this layer, in the dtype of the computation.

        Args:
          in_features: entries of x on the contracted axis.
          x: what is multiplied, or of its dtype.
        """
        kernel_shape = (in_features, self.features)
        kernel = self.param("kernel", self.kernel_init, kernel_shape, self.param_dtype)
        bias = (
            self.param("bias", self.bias_init, (self.features,), self.param_dtype)
            if self.use_bias
            else None
        )
        dtype = canonicalize_dtype(x, kernel, bias, dtype=self.dtype)
        rules = rules_of(self, self.plan)
        return Linear(
            kernel.astype(dtype),
            None if bias is None else bias.astype(dtype),
            mask_of(self),
            rules.backward,
            rules.activation,
            rules.gradient,
            gradient_key(self, rules),
        )


class Affine(nn.Module):
    """`scale * x + bias`, a scale and a bias a channel: ResMLP's stand-in for normalisation.

    Attributes:
      dtype: dtype of the computation; None infers it.
    """

    dtype: Any = None

    def __call__(self, x: Float[Array, "*batch channels"]) -> Float[Array, "*batch channels"]:
        """Maps `[..., channels]` to the same shape."""
        x, scale, bias = promote_dtype(x, *self.parameters(x.shape[-1]), dtype=self.dtype)
        return scaled(x, scale) + spread(bias, x)

    @nn.compact
    def parameters(
        self, channels: int
    ) -> tuple[Float[Array, " channels"], Float[Array, " channels"]]:
        """Scale and bias, float32 `[channels]` each."""
        scale = self.param("scale", nn.initializers.ones_init(), (channels,), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros_init(), (channels,), jnp.float32)
        return scale, bias


class LayerScale(nn.Module):
    """`scale * x`, a learned scale a channel, small at the start (CaiT; ResMLP).

    Attributes:
      start: value that every scale starts from.
      dtype: dtype of the computation; None infers it.
    """

    start: float
    dtype: Any = None

    def __call__(self, x: Float[Array, "*batch channels"]) -> Float[Array, "*batch channels"]:
        """Maps `[..., channels]` to the same shape."""
        x, scale = promote_dtype(x, self.parameters(x.shape[-1]), dtype=self.dtype)
        return scaled(x, scale)

    @nn.compact
    def parameters(self, channels: int) -> Float[Array, " channels"]:
        """The scale, float32 `[channels]`."""
        start = nn.initializers.constant(self.start)
        return self.param("scale", start, (channels,), jnp.float32)


class StochasticDepth(nn.Module):
    """Drops the whole residual branch of a sample at random and rescales the others.

    Draws from the random stream `drop_path`.

    Attributes:
      rate: probability that a sample loses the branch, in `[0, 1)`.
    """

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "batch ..."], *, train: bool) -> Float[Array, "batch ..."]:
        """Maps `[batch, ...]` to the same shape; the identity unless `train`.

        Raises:
          InputError: the rate is outside `[0, 1)`.
        """
        if not 0 <= self.rate < 1:
            raise InputError(f"drop path rate {self.rate} is outside [0, 1): 0 turns it off")
        if not train or self.rate == 0:
            return x
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        key = self.make_rng("drop_path")
        keep = draw_part(lambda drawn: jax.random.bernoulli(key, 1 - self.rate, drawn), shape, x)
        return jnp.where(keep, x / jnp.asarray(1 - self.rate, x.dtype), jnp.zeros_like(x))
