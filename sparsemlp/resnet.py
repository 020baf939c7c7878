"""ResNet-9 with a plan for its sparsity: the network of McDanel, Dinh and Magallanes (SDGP).

The parameter tree numbers its convolutions in their order: `conv_1/kernel` reads the image,
`conv_2` to `conv_8` are those that rules are meant for. `norm_3` normalises what `conv_3` gives.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict
from flax.linen.dtypes import promote_dtype
from jaxtyping import Array, Float

from sparsemlp.activations import keep_only_compact
from sparsemlp.errors import InputError, check_images, check_sizes
from sparsemlp.image_modules import BatchNormScales, SparseConv
from sparsemlp.module_plan import check_own, frozen_plan
from sparsemlp.modules import SparseDense
from sparsemlp.plan import Plan, all_rules
from sparsemlp.rules import ActivationPooling, ActivationPruning

_INIT = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
"""What the original's framework gives a layer that sets nothing."""

_LOGIT_SCALE = 0.2


class ResNet9(nn.Module):
    """ResNet-9 for small images: eight convolutions, two of each of two residual branches.

    conv 3x3 of 128 channels, conv 5x5 of 256 with stride 2, a residual branch of two conv 3x3, conv
    3x3 of 512, a maximum of 2x2, a residual branch of two conv 3x3, conv 3x3 of 256 without
    padding, the maximum over all pixels, a linear head without bias, times 0.2. Each convolution
    has no bias and is followed by batch normalisation and a ReLU. 9,088,128 parameters with 10
    classes. Its batch statistics are the variable collection `batch_stats`, mutable in training.

    Where the plan has a rule for an activation, the backward pass is given the outputs of the
    convolutions and what the rules keep of their inputs: normalisation, ReLU, sums and maxima
    between them are computed again. The output of a convolution itself is kept whole.

    Attributes:
      image_size: height and width of an image, in pixels, at least 12.
      channels: colour channels of an image.
      width: channels of the first convolution; the others have twice or four times as many.
      n_classes: number of classes.
      plan: which parameter gets which rules.
      remat: whether what stands between two convolutions is computed again in the backward pass
        (`jax.checkpoint`) where no rule asks for it.
      engine: who computes sparse products.
      dtype: dtype of the convolutions; parameters, statistics and logits are float32.
    """

    image_size: int = 32
    channels: int = 3
    width: int = 128
    n_classes: int = 10
    plan: Plan = FrozenDict()
    remat: bool = False
    engine: str = "auto"
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        self.plan = frozen_plan(self.plan)
        super().__post_init__()

    @nn.compact
    def __call__(
        self, images: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Float[Array, "batch classes"]:
        """Maps normalised images to logits.

        Args:
          images: float `[batch, image_size, image_size, channels]`.
          train: whether batch normalisation uses the statistics of the batch.

        Returns:
          float32 `[batch, n_classes]`.

        Raises:
          InputError: sizes that no model has, images of another size, or too small for the last
            convolution.
        """
        check_sizes(self, width=1, n_classes=1)
        images = jnp.asarray(images)
        check_images(self, images.shape)
        if self.image_size < 12:
            raise InputError(
                f"images of {self.image_size}x{self.image_size} pixels are too small for ResNet-9: "
                "it takes 12x12 and larger"
            )
        width = self.width
        layer = functools.partial(self._layer, train=train)
        first = layer(1, _Branches.of(images.astype(self.dtype)), width)
        second = layer(2, first, 2 * width, size=5, strides=2)
        inner = layer(4, layer(3, second, 2 * width), 2 * width)
        fifth = layer(5, second + inner, 4 * width).then(_halved)
        inner = layer(7, layer(6, fifth, 4 * width), 4 * width)
        last = layer(8, fifth + inner, 2 * width, padding=0)
        features = self._recomputing(_largest_pixel)(last)
        head = SparseDense(
            self.n_classes,
            use_bias=False,
            plan=self.plan,
            engine=self.engine,
            dtype=self.dtype,
            kernel_init=_INIT,
            name="head",
        )
        (logits,) = promote_dtype(head(features), dtype=jnp.float32)
        check_own(self, self.plan)
        return logits * _LOGIT_SCALE

    def _layer(
        self,
        index: int,
        x: "_Branches",
        features: int,
        *,
        train: bool,
        size: int = 3,
        strides: int = 1,
        padding: int | None = None,
    ) -> "_Branches":
        """Convolution, batch normalisation and ReLU, the last two not computed yet."""
        conv = SparseConv(
            features,
            (size, size),
            (strides, strides),
            size // 2 if padding is None else padding,
            use_bias=False,
            plan=self.plan,
            engine=self.engine,
            dtype=self.dtype,
            kernel_init=_INIT,
            name=f"conv_{index}",
        ).function(jax.eval_shape(_value, x).shape[3])
        with jax.named_scope(f"conv_{index}"):
            y = self._recomputing(lambda branches: conv(_value(branches)))(x)
        scale, shift = BatchNormScales(name=f"norm_{index}")(y, train=train)
        return _Branches((_Branch((y, scale, shift), (_normalised,)),))

    def _recomputing[**P, R](self, function: Callable[P, R]) -> Callable[P, R]:
        """A function that the backward pass computes again where the plan or the model asks."""
        keeping = ActivationPruning | ActivationPooling
        prunes = any(isinstance(rule, keeping) for rule in all_rules(self.plan))
        return keep_only_compact(function) if prunes or self.remat else function


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("arrays",), meta_fields=("functions",)
)
@dataclasses.dataclass(frozen=True)
class _Branch:
    """A tensor that is not computed yet: arrays, and the functions that make it of them."""

    arrays: tuple[Any, ...]
    functions: tuple[Callable[..., Array], ...]


@functools.partial(jax.tree_util.register_dataclass, data_fields=("parts",), meta_fields=())
@dataclasses.dataclass(frozen=True)
class _Branches:
    """A sum of tensors that are not computed yet; what uses it computes it, and may do so again."""

    parts: tuple[_Branch, ...]

    @staticmethod
    def of(x: Array) -> "_Branches":
        return _Branches((_Branch((x,), (_itself,)),))

    def __add__(self, other: "_Branches") -> "_Branches":
        return _Branches((*self.parts, *other.parts))

    def then(self, function: Callable[[Array], Array]) -> "_Branches":
        """The same with a function on top; of a single tensor alone."""
        (part,) = self.parts
        return _Branches((_Branch(part.arrays, (*part.functions, function)),))


def _value(branches: _Branches) -> Array:
    tensors = []
    for part in branches.parts:
        first, *others = part.functions
        x = first(*part.arrays)
        for function in others:
            x = function(x)
        tensors.append(x)
    return functools.reduce(jnp.add, tensors)


def _itself(x: Array) -> Array:
    return x


def _normalised(y: Array, scale: Array, shift: Array) -> Array:
    scale, shift = (a[None, None, None, :] for a in (scale, shift))
    return nn.relu(y.astype(jnp.float32) * scale + shift).astype(y.dtype)


def _halved(x: Array) -> Array:
    """Maxima of 2x2 pixels. XLA makes the gradient of a window's maximum of four index arrays."""
    batch, height, width, channels = x.shape
    down, across = height // 2, width // 2
    rows = x[:, : 2 * down, : 2 * across].reshape(batch, down, 2, 2 * across, channels)
    columns = _larger(rows[:, :, 0], rows[:, :, 1]).reshape(batch, down, across, 2, channels)
    return _larger(columns[..., 0, :], columns[..., 1, :])


def _larger(a: Array, b: Array) -> Array:
    """The larger of two numbers, the first of equal ones; NaN if one is.

    Its gradient goes to one of the two whatever happens. That of `jnp.maximum` and `jnp.max` goes
    to what equals the maximum, and to nothing where XLA computes the numbers again for the
    gradient in another kernel, with a fused multiply-add in one of the two alone.
    """
    return jnp.where((a >= b) | jnp.isnan(a), a, b)


def _largest_pixel(last: _Branches) -> Array:
    """The maximum of all pixels, its gradient to the first of the largest; see `_larger`."""
    x = _value(last)
    pixels = x.reshape(x.shape[0], x.shape[1] * x.shape[2], x.shape[3])
    place = jnp.argmax(pixels, axis=1, keepdims=True)
    chosen = place == jnp.arange(pixels.shape[1])[None, :, None]
    return jnp.sum(jnp.where(chosen, pixels, 0), axis=1)
