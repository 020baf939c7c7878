"""Augmentation of a batch inside the compiled step: crop, flip, normalise, cut out, mix.

Images stay uint8 until they have been moved; only the mixing works on floats.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, PRNGKeyArray, UInt8

from sparsemlp.errors import InputError
from sparsemlp.train.image_mixing import Mixing, mixing_lambda, mixing_weight

SMALLEST_ALPHA, LARGEST_ALPHA = 1e-30, 1e30
"""Of a Beta distribution that float32 can draw from."""


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """What happens to a training batch; hashable, so it can be a static argument.

    Attributes:
      flip: probability of a horizontal flip, drawn for each image; 0 turns it off.
      crop_padding: black pixels added on every side before a random crop back to the
        image's size, drawn for each image; 0 turns it off.
      cutout: side of a square of each image that is given the mean colour, in pixels; its place
        is drawn for each image, wholly inside it; 0 turns it off.
      mixup_alpha: lambda of mixup is drawn from Beta(alpha, alpha); 0 turns mixup off.
      cutmix_alpha: the same for CutMix; 0 turns CutMix off.
      mix_probability: share of the batches that are mixed at all.
      switch_probability: share of CutMix among the mixed batches if both are on.
      label_smoothing: probability mass that is spread evenly over all classes.

    Raises:
      InputError: a probability outside [0, 1], an alpha that is neither 0 nor within
        [1e-30, 1e30], a negative padding, or a smoothing outside [0, 1).
    """

    flip: float = 0.5
    crop_padding: int = 4
    cutout: int = 0
    mixup_alpha: float = 0.2
    cutmix_alpha: float = 0.8
    mix_probability: float = 1.0
    switch_probability: float = 0.5
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        for name in ("flip", "mix_probability", "switch_probability"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"{name}={value} is no probability: choose it in [0, 1]")
        for name in ("mixup_alpha", "cutmix_alpha"):
            value = getattr(self, name)
            if value and not SMALLEST_ALPHA <= value <= LARGEST_ALPHA:
                raise InputError(
                    f"{name.replace('_', ' ')} {value} parametrises no Beta distribution that "
                    f"float32 can draw from: choose it in [{SMALLEST_ALPHA:g}, {LARGEST_ALPHA:g}], "
                    "or 0 to turn it off"
                )
        if self.crop_padding < 0:
            raise InputError(
                f"crop_padding={self.crop_padding} is negative: choose a number of pixels > 0, "
                f"or 0 to turn the crop off"
            )
        if self.cutout < 0:
            raise InputError(
                f"cutout={self.cutout} is negative: choose the side of a square in pixels, or 0 to "
                "turn it off"
            )
        if not 0 <= self.label_smoothing < 1:
            raise InputError(
                f"label_smoothing={self.label_smoothing} leaves no mass for the label: choose it "
                f"in [0, 1)"
            )

    @property
    def mixes(self) -> bool:
        """Whether any batch can be mixed."""
        return self.mix_probability > 0 and (self.mixup_alpha > 0 or self.cutmix_alpha > 0)

    @property
    def mixing(self) -> Mixing:
        """How batches are mixed."""
        probabilities = self.mix_probability, self.switch_probability
        return Mixing(self.mixup_alpha, self.cutmix_alpha, *probabilities)


def normalize(
    images: UInt8[Array, "*batch channels"],
    mean: Sequence[float] | np.ndarray,
    std: Sequence[float] | np.ndarray,
) -> Float32[Array, "*batch channels"]:
    """`(images / 255 - mean) / std`, for training and evaluation alike.

    Args:
      images: pixels, channels last.
      mean: mean of each channel, of pixels scaled to [0, 1].
      std: standard deviation of each channel, on the same scale.

    Returns:
      The normalised images.

    Raises:
      InputError: `mean` or `std` has not one number per channel, or a `std` is not positive.
    """
    channels = images.shape[-1]
    mean, std = np.asarray(mean, np.float64), np.asarray(std, np.float64)
    for name, value in (("mean", mean), ("std", std)):
        if value.shape != (channels,):
            raise InputError(
                f"{name} of shape {value.shape} for images of {channels} channels: give "
                f"{channels} numbers, one per channel"
            )
    if not (std > 0).all():
        raise InputError(f"std={std.tolist()} divides the pixels: give positive numbers")
    scale = jnp.asarray(1 / (255 * std), jnp.float32)
    shift = jnp.asarray(mean / std, jnp.float32)
    return images.astype(jnp.float32) * scale - shift


def augment(
    key: PRNGKeyArray,
    images: UInt8[Array, "batch height width channels"],
    labels: Int32[Array, " batch"],
    *,
    augmentation: Augmentation,
    n_classes: int,
    mean: Sequence[float] | np.ndarray,
    std: Sequence[float] | np.ndarray,
    lam: Float32[Array, ""] | None = None,
) -> tuple[
    Float32[Array, "batch height width channels"],
    Float32[Array, "batch n_classes"],
]:
    """Crop, flip, normalise, cut out and mix one batch; a pure function of key and batch.

    The partner of an image is its mirror position in the batch (`images[::-1]`), so a batch of
    any size can be mixed. Cropping pads the raw pixels with 0, before normalisation.

    Args:
      key: random key of this step.
      images: raw pixels.
      labels: class indices in [0, n_classes).
      augmentation: what to do.
      n_classes: number of classes.
      mean: mean of each channel, as for `normalize`.
      std: standard deviation of each channel, as for `normalize`.
      lam: what `batch_lambda` draws with this key, if that was done before.

    Returns:
      The images, and the distribution over the classes that each should be given: its own
      smoothed label times lambda plus its partner's times 1 - lambda.

    Raises:
      InputError: as for `normalize`, or a cutout that is larger than the images.

    References:
      DeVries and Taylor, Cutout, https://arxiv.org/abs/1708.04552
    """
    move_key, mix_key = jax.random.split(key)
    # Fused into one loop with the batch's gather and the mixing, XLA's CPU backend repeats the
    # index arithmetic for every byte: 5 times as long without barriers.
    images = jax.lax.optimization_barrier(images)
    moved = jax.lax.optimization_barrier(_crop_and_flip(move_key, images, augmentation))
    smoothing = augmentation.label_smoothing
    targets = (1 - smoothing) * jax.nn.one_hot(labels, n_classes, dtype=jnp.float32)
    targets = targets + smoothing / n_classes
    pixels = normalize(moved, mean, std)
    if augmentation.cutout > 0:
        pixels = _cut_out(jax.random.fold_in(move_key, 2), pixels, augmentation.cutout)
    if not augmentation.mixes:
        return pixels, targets
    size = images.shape[1], images.shape[2]
    weight, lam = mixing_weight(mix_key, size, augmentation.mixing, lam)
    mixed = pixels * weight[:, :, None] + pixels[::-1] * (1 - weight[:, :, None])
    mixed = jax.lax.optimization_barrier(mixed)
    return mixed, targets * lam + targets[::-1] * (1 - lam)


def batch_lambda(key: PRNGKeyArray, augmentation: Augmentation) -> Float32[Array, ""]:
    """The lambda of mixup or CutMix that `augment` draws with this key.

    Args:
      key: random key of the step.
      augmentation: what to do; it must mix.
    """
    _, mix_key = jax.random.split(key)
    return mixing_lambda(mix_key, augmentation.mixing)


def _crop_and_flip(
    key: PRNGKeyArray,
    images: UInt8[Array, "batch height width channels"],
    augmentation: Augmentation,
) -> UInt8[Array, "batch height width channels"]:
    """Shift each image by up to the padding in both directions, and mirror some."""
    crop_key, flip_key = jax.random.split(key)
    batch, padding = images.shape[0], augmentation.crop_padding
    if padding > 0:
        padded = jnp.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
        corners = jax.random.randint(crop_key, (batch, 2), 0, 2 * padding + 1)
        images = jax.vmap(
            lambda image, corner: jax.lax.dynamic_slice(
                image, (corner[0], corner[1], 0), images.shape[1:]
            )
        )(padded, corners)
    if augmentation.flip > 0:
        flipped = jax.random.bernoulli(flip_key, augmentation.flip, (batch,))
        images = jnp.where(flipped[:, None, None, None], images[:, :, ::-1], images)
    return images


def _cut_out(
    key: PRNGKeyArray, pixels: Float32[Array, "batch height width channels"], side: int
) -> Float32[Array, "batch height width channels"]:
    """Zeros, the mean colour of normalised pixels, in a square of each image."""
    batch, *size = pixels.shape[:3]
    if side > min(size):
        raise InputError(
            f"cutout={side} is larger than the images of {size[0]}x{size[1]} pixels: choose at "
            f"most {min(size)}"
        )

    def inside(key: PRNGKeyArray, length: int) -> Bool[Array, "batch length"]:
        first = jax.random.randint(key, (batch, 1), 0, length - side + 1)
        position = jnp.arange(length, dtype=jnp.int32)
        return (position >= first) & (position < first + side)

    rows, columns = (inside(k, n) for k, n in zip(jax.random.split(key), size, strict=True))
    gone = (rows[:, :, None] & columns[:, None, :])[..., None]
    return jnp.where(gone, jnp.zeros_like(pixels), pixels)
