"""Mixup and CutMix: how much of each pixel of an image is its own, and how much its partner's.

Both are one formula, `weight * image + (1 - weight) * partner`, with the same weight at all pixels
(mixup) or a weight of 0 inside a box and 1 outside (CutMix).

References:
  Zhang et al., mixup: Beyond Empirical Risk Minimization, https://arxiv.org/abs/1710.09412

  Yun et al., CutMix, https://arxiv.org/abs/1905.04899

  Wightman, timm, `timm.data.Mixup` in its mode "batch", whose semantics are followed here.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, PRNGKeyArray


class Mixing(NamedTuple):
    """How batches are mixed.

    Attributes:
      mixup_alpha: lambda of mixup is drawn from Beta(alpha, alpha); 0 turns mixup off.
      cutmix_alpha: the same for CutMix; 0 turns CutMix off.
      probability: of a batch to be mixed at all.
      switch_probability: of CutMix rather than mixup, if both are on.
    """

    mixup_alpha: float
    cutmix_alpha: float
    probability: float
    switch_probability: float


def mixing_weight(
    key: PRNGKeyArray,
    size: tuple[int, int],
    mixing: Mixing,
    lam: Float32[Array, ""] | None = None,
) -> tuple[Float32[Array, "height width"], Float32[Array, ""]]:
    """Draws one weight for a whole batch, and its mean over the pixels, for the labels.

    Args:
      key: random key of this batch.
      size: height and width of the images in pixels.
      mixing: how it is mixed.
      lam: what `mixing_lambda` draws with this key, if that was done before.

    Returns:
      The weight of an image's own pixels, and that of its own label.
    """
    _, switch_key, _, box_key = jax.random.split(key, 4)
    lam = mixing_lambda(key, mixing) if lam is None else lam
    use_cutmix = _uses_cutmix(switch_key, mixing)
    pasted = _cutmix_box(box_key, size, lam)
    weight = jnp.where(use_cutmix, 1 - pasted.astype(jnp.float32), lam)
    corrected = 1 - jnp.sum(pasted, dtype=jnp.float32) / (size[0] * size[1])
    return weight, jnp.where(use_cutmix, corrected, lam)


def mixing_lambda(key: PRNGKeyArray, mixing: Mixing) -> Float32[Array, ""]:
    """Draws lambda, the share of the area or of each pixel that is an image's own.

    Drawing it is a loop until a draw is accepted, and a GPU asks the host after each turn of such
    a loop: many batches are better drawn for together, by `jax.vmap`, than each in its step.

    Args:
      key: random key of this batch.
      mixing: how it is mixed.
    """
    on_key, switch_key, lambda_key, _ = jax.random.split(key, 4)
    use_cutmix = _uses_cutmix(switch_key, mixing)
    alphas = jnp.float32(mixing.cutmix_alpha), jnp.float32(mixing.mixup_alpha)
    return jnp.where(
        jax.random.bernoulli(on_key, mixing.probability),
        _symmetric_beta(lambda_key, jnp.where(use_cutmix, *alphas)),
        jnp.float32(1),
    )


def _uses_cutmix(key: PRNGKeyArray, mixing: Mixing) -> Bool[Array, ""]:
    if mixing.mixup_alpha > 0 and mixing.cutmix_alpha > 0:
        return jax.random.bernoulli(key, mixing.switch_probability)
    return jnp.bool_(mixing.cutmix_alpha > 0)


def _symmetric_beta(key: PRNGKeyArray, alpha: Float32[Array, ""]) -> Float32[Array, ""]:
    """A draw from Beta(alpha, alpha): the share of one of two Gamma(alpha) variables.

    `jax.random.beta` does the same with two samplers, which double the time of compilation.
    """
    log_gammas = jax.random.loggamma(key, alpha, (2,))
    return jax.nn.sigmoid(log_gammas[0] - log_gammas[1])


def _cutmix_box(
    key: PRNGKeyArray, size: tuple[int, int], lam: Float32[Array, ""]
) -> Bool[Array, "height width"]:
    """True inside a box of about 1 - lam of the area, uniformly centred, cut at the border."""
    ratio = jnp.sqrt(1 - lam)
    keys = jax.random.split(key)

    def inside(key: PRNGKeyArray, length: int) -> Bool[Array, " length"]:
        half = (length * ratio).astype(jnp.int32) // 2
        centre = jax.random.randint(key, (), 0, length)
        position = jnp.arange(length, dtype=jnp.int32)
        return (position >= centre - half) & (position < centre + half)

    return inside(keys[0], size[0])[:, None] & inside(keys[1], size[1])
