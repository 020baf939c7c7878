"""What is kept of the input of a convolution for the backward pass."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import Engine, dense
from sparsemlp.activations import (
    CompactActivation,
    PrunedActivation,
    check_sides,
    compact,
    named,
    sum_windows,
)
from sparsemlp.rules import ActivationPooling, ActivationPruning


def compact_image(
    x: Float[Array, "batch height width channels"],
    rule: ActivationPruning | ActivationPooling,
    engine: Engine,
) -> "CompactImage | None":
    """Keeps of images what a rule says.

    Args:
      x: images, channels last.
      rule: blocks of pixels (all images flattened, row by row) and channels, or the means of
        windows `(height, width)` of pixels, channel by channel.
      engine: who finds the largest blocks.

    Returns:
      What is kept, or None where the rule drops nothing: ratio 0, windows of one.

    Raises:
      InputError: a block or window that does not divide x.
    """
    if isinstance(rule, ActivationPruning):
        kept = compact(x, rule, -1, engine)
        assert kept is None or isinstance(kept, PrunedActivation)
        return kept
    if rule.window == (1, 1):
        return None
    sides = (("pixels down", x.shape[1]), ("pixels across", x.shape[2]))
    check_sides("pooling window", rule.window, sides)
    sums = _window_sums(x.astype(dense.sum_dtype(x)), rule.window)
    means = sums / jnp.asarray(rule.window[0] * rule.window[1], sums.dtype)
    return PooledImage(named(means.astype(x.dtype)), rule.window)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("means",), meta_fields=("window",)
)
@dataclasses.dataclass(frozen=True)
class PooledImage(CompactActivation):
    """The means of the windows of images.

    Attributes:
      means: `[batch, height / a, width / b, channels]`.
      window: `(a, b)` pixels.
    """

    means: Any
    window: tuple[int, int]

    def dense(self) -> Float[Array, "batch height width channels"]:
        """Images in which every pixel has the mean of its window."""
        down, across = self.window
        return jnp.repeat(jnp.repeat(self.means, down, axis=1), across, axis=2)

    def kernel_gradient(self, dy: Float[Array, "..."], engine: Engine) -> Float[Array, "in out"]:
        """Of dy summed over each window, since all its pixels meet the same mean."""
        del engine
        return dense.kernel_gradient(self.means, _window_sums(dy, self.window), -1)


def _window_sums(a: Array, window: tuple[int, int]) -> Array:
    return sum_windows(sum_windows(a, -2, window[1]), -3, window[0])


CompactImage = PrunedActivation | PooledImage


def skips(kept: CompactImage, engine: Engine) -> bool:
    """Whether `kept.kernel_gradient` is a smaller product than the dense one, with an engine."""
    if engine.narrowest_kept is None:
        return False
    return isinstance(kept, PooledImage) or kept.values.shape[2] >= engine.narrowest_kept
