"""Learning rates over a run: of an epoch or a moment, and of an optimizer step."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int, Int32

from sparsemlp.errors import InputError

RateOfStep = Callable[[Any], Any]
"""Learning rate of an optimizer step, counted from 0; traced."""


def learning_rate(
    epoch: int | Int[Array, "*shape"],
    *,
    peak: float,
    epochs: int,
    warmup_epochs: int,
    start: float,
    minimum: float,
) -> Float32[Array, "*shape"]:
    """Linear warm-up, then a cosine over the whole run, constant within an epoch.

    `start + epoch * (peak - start) / warmup_epochs` for `epoch < warmup_epochs`, afterwards
    `minimum + (peak - minimum) * (1 + cos(pi * epoch / epochs)) / 2`: the cosine counts from
    epoch 0, not from the end of the warm-up, so the first epoch after it lies below the peak.
    From epoch `epochs` on the rate is `minimum`.

    Args:
      epoch: index of the epoch, from 0; may be traced.
      peak: rate that the warm-up climbs to and that the cosine starts from.
      epochs: length of the cosine.
      warmup_epochs: length of the warm-up; 0 for none.
      start: rate of epoch 0 if there is a warm-up.
      minimum: rate that the cosine ends at.

    Returns:
      The rate, of the shape of `epoch`.

    Raises:
      InputError: a rate is negative or not finite, `epochs` is less than 1, or the warm-up
        does not fit into the epochs.

    References:
      Loshchilov and Hutter, SGDR, https://arxiv.org/abs/1608.03983, equation 5, with the
      warm-up as in timm's `CosineLRScheduler` (`warmup_prefix=False`).
    """
    _check_schedule(peak, epochs, warmup_epochs, start, minimum)
    position = jnp.asarray(epoch).astype(jnp.float32)
    warming = start + position * ((peak - start) / max(warmup_epochs, 1))
    angle = jnp.pi * jnp.minimum(position / epochs, 1)
    cosine = minimum + (peak - minimum) * (1 + jnp.cos(angle)) / 2
    return jnp.where(position < warmup_epochs, warming, cosine)


def triangular_rate(
    position: int | float | Float[Array, "*shape"],
    *,
    peak: float,
    epochs: int,
    warmup_epochs: int,
    start: float,
    minimum: float,
) -> Float32[Array, "*shape"]:
    """A straight line up to the peak and another down to the end of the run.

    Args:
      position: epochs since the start, with fractions; may be traced.
      peak: rate at the end of the warm-up.
      epochs: length of the run; from there on the rate is `minimum`.
      warmup_epochs: length of the warm-up; 0 for none.
      start: rate at position 0 if there is a warm-up.
      minimum: rate at the end.

    Returns:
      The rate, of the shape of `position`.

    Raises:
      InputError: as for `learning_rate`.
    """
    _check_schedule(peak, epochs, warmup_epochs, start, minimum)
    places = jnp.asarray([0, warmup_epochs, epochs][warmup_epochs == 0 :], jnp.float32)
    rates = jnp.asarray([start, peak, minimum][warmup_epochs == 0 :], jnp.float32)
    return jnp.interp(jnp.asarray(position, jnp.float32), places, rates)


def _check_schedule(
    peak: float, epochs: int, warmup_epochs: int, start: float, minimum: float
) -> None:
    for name, rate in (("peak", peak), ("start", start), ("minimum", minimum)):
        if not 0 <= rate < math.inf:
            raise InputError(f"{name}={rate} is no learning rate: choose a finite number >= 0")
    if epochs < 1:
        raise InputError(f"epochs={epochs} leaves nothing to train: choose at least 1")
    if not 0 <= warmup_epochs <= epochs:
        raise InputError(
            f"warmup_epochs={warmup_epochs} does not fit into {epochs} epochs: choose it in "
            f"[0, {epochs}]"
        )


def by_epoch(
    rate_of_epoch: Callable[[Int32[Array, ""]], Float32[Array, ""]], steps_per_epoch: int
) -> RateOfStep:
    """A rate that is constant within an epoch; step `s` is of epoch `s // steps_per_epoch`.

    Raises:
      InputError: `steps_per_epoch` is less than 1.
    """
    _check_steps(steps_per_epoch)
    return lambda step: rate_of_epoch(jnp.asarray(step) // steps_per_epoch)


def by_step(
    rate_of_position: Callable[[Float32[Array, ""]], Float32[Array, ""]], steps_per_epoch: int
) -> RateOfStep:
    """A rate that moves at every step; step `s` is at position `s / steps_per_epoch`.

    Raises:
      InputError: `steps_per_epoch` is less than 1.
    """
    _check_steps(steps_per_epoch)
    return lambda step: rate_of_position(jnp.asarray(step).astype(jnp.float32) / steps_per_epoch)


def _check_steps(steps_per_epoch: int) -> None:
    if steps_per_epoch < 1:
        raise InputError(f"steps_per_epoch={steps_per_epoch} makes no epoch: choose at least 1")
