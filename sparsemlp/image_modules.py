"""Flax Linen layers for images: the sparse convolution, and batch normalisation as scales."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict
from flax.linen.dtypes import promote_dtype
from jaxtyping import Array, Float, Float32

from sparsemlp.convolution import sparse_conv
from sparsemlp.errors import InputError
from sparsemlp.module_plan import frozen_plan, gradient_key, mask_of, rules_of
from sparsemlp.plan import Plan
from sparsemlp.windows import Padding


class SparseConv(nn.Module):
    """A drop-in for a two-dimensional `flax.linen.Conv` that obeys a plan.

    It has the arguments of that one but for precision, promotion of dtypes, dilation, groups, a
    mask of weights and what computes the convolution, and takes no circular, reflecting or causal
    padding and no more or fewer batch dimensions than one; give all but the first two by name. As
    of every function with a rule of its own for the backward pass, JAX takes no derivative of it
    forward.

    Its mask comes in as the variable `kernel` of the collection `masks`; without one the kernel is
    dense. The gradient method `random` draws from the random stream `gradient`.

    Attributes:
      features: number of output channels.
      kernel_size: `(down, across)`, in pixels.
      strides: pixels from one output to the next, `(down, across)` or one number for both; None is
        one.
      padding: `SAME`, `VALID`, pixels on every side, or `((above, below), (left, right))`.
      use_bias: whether to add a bias.
      plan: which parameter gets which rules; the layer looks up its own path.
      engine: who computes the products.
      dtype: dtype of the computation; None infers it from input and parameters.
      param_dtype: dtype of the parameters.
      kernel_init: initializer of the kernel `[down, across, in, out]`.
      bias_init: initializer of the bias `[out]`.
    """

    features: int
    kernel_size: tuple[int, int]
    strides: int | tuple[int, int] | None = (1, 1)
    padding: Padding = "SAME"
    use_bias: bool = True
    plan: Plan = FrozenDict()
    engine: str = "auto"
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Callable[..., Array] = nn.initializers.lecun_normal()
    bias_init: Callable[..., Array] = nn.initializers.zeros_init()

    def __post_init__(self) -> None:
        self.plan = frozen_plan(self.plan)
        super().__post_init__()

    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch new_height new_width features"]:
        """Maps `[batch, height, width, channels]` to `[batch, new_height, new_width, features]`."""
        x = jnp.asarray(x)
        if x.ndim != 4:
            raise InputError(
                f"x of shape {x.shape} is not [batch, height, width, channels]: give one axis for "
                "the batch"
            )
        return self.function(x.shape[3])(x)

    @nn.compact
    def function(self, channels: int) -> Callable[[Array], Array]:
        """The layer as a function of images alone, its parameters, mask and rules inside.

        Args:
          channels: of the images.
        """
        size = self.kernel_size
        if not isinstance(size, Sequence) or len(size) != 2:
            raise InputError(f"kernel_size {size!r} is not (down, across): this one is for images")
        shape = (*size, channels, self.features)
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        bias = (
            self.param("bias", self.bias_init, (self.features,), self.param_dtype)
            if self.use_bias
            else None
        )
        mask = mask_of(self)
        given = 1 if self.strides is None else self.strides
        strides = given if isinstance(given, Sequence) else (given, given)
        rules = rules_of(self, self.plan)
        rng = gradient_key(self, rules)

        def convolve(x: Array) -> Array:
            x, own_kernel, own_bias = promote_dtype(x, kernel, bias, dtype=self.dtype)
            return sparse_conv(
                x,
                own_kernel,
                own_bias,
                strides=strides,
                padding=self.padding,
                mask=mask,
                backward=rules.backward,
                activation=rules.activation,
                gradient=rules.gradient,
                engine=self.engine,
                rng=rng,
            )

        return convolve


class BatchNormScales(nn.Module):
    """Batch normalisation as the scale and shift of each channel: `y * scale + shift`.

    `flax.linen.BatchNorm` applies them itself, and the backward pass then keeps what it made; a
    caller that applies them can make it again from y instead. Ioffe and Szegedy, arXiv 1502.03167.
    The collection `batch_stats` holds running means and variances, float32.

    Attributes:
      momentum: share of the running statistics that stays at each step.
      epsilon: added to the variance.
    """

    momentum: float = 0.9
    epsilon: float = 1e-5

    @nn.compact
    def __call__(
        self, y: Float[Array, "batch height width channels"], *, train: bool
    ) -> tuple[Float32[Array, " channels"], Float32[Array, " channels"]]:
        """Scale and shift, from the batch when training and else from the running statistics.

        Only y is kept for the backward pass. Running statistics move where `batch_stats` is
        mutable, the variance unbiased.
        """
        channels = y.shape[-1]
        gamma = self.param("scale", nn.initializers.ones_init(), (channels,), jnp.float32)
        beta = self.param("bias", nn.initializers.zeros_init(), (channels,), jnp.float32)
        means = self.variable("batch_stats", "mean", jnp.zeros, (channels,), jnp.float32)
        variances = self.variable("batch_stats", "var", jnp.ones, (channels,), jnp.float32)
        mean, variance = means.value, variances.value
        if train:
            mean, variance = jax.checkpoint(_statistics)(y)
            if not self.is_initializing() and self.is_mutable_collection("batch_stats"):
                n = y.size // channels
                unbiased = variance * (n / max(1, n - 1))
                means.value = _moved(means.value, mean, self.momentum)
                variances.value = _moved(variances.value, unbiased, self.momentum)
        scale = gamma * jax.lax.rsqrt(variance + self.epsilon)
        return scale, beta - mean * scale


def _statistics(y: Array) -> tuple[Array, Array]:
    y = y.astype(jnp.float32)
    mean = jnp.mean(y, axis=(0, 1, 2))
    return mean, jnp.mean(jnp.square(y - mean[None, None, None, :]), axis=(0, 1, 2))


def _moved(old: Array, new: Array, momentum: float) -> Array:
    return momentum * old + (1 - momentum) * jax.lax.stop_gradient(new)
