"""GELU and its derivative for a GPU, whose kernels have no error function."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

_QUOTIENT = (
    -0.13594986653128133,
    0.4627836814144577,
    -0.355619611808542,
    0.4127263979032389,
    0.04490060235183873,
    0.2019618852031437,
    0.18283017819215674,
    0.18636665138599243,
)
"""Of `erfc(z) e^(z^2) / t`, highest power of `t = 1 / (1 + 0.33 z)` first: fitted for z from 0 to
9.6 with a relative error of 8.2e-8, as the native kernels have it."""


def gelu(x: Float[Array, "*shape"]) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """`x P(x)` and `P(x) + x p(x)`, P the normal distribution and p its density; float32.

    P is right to 3e-7, and in its left tail relatively as well.
    """
    density = jnp.exp2(x * x * (-0.5 * math.log2(math.e)))
    t = 1 / (jnp.abs(x) * (0.33 * 2**-0.5) + 1)
    quotient = t * (_QUOTIENT[0] / 2) + _QUOTIENT[1] / 2
    for coefficient in _QUOTIENT[2:]:
        quotient = quotient * t + coefficient / 2
    tail = density * (quotient * t)
    distribution = jnp.where(x < 0, tail, 1 - tail)
    return x * distribution, distribution + x * density * (2 * jnp.pi) ** -0.5


def through_gelu(
    before: Float[Array, "*shape"], after: Float[Array, "*shape"]
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Hidden units after GELU, and the gradient before it, in the dtype of what is given.

    Args:
      before: hidden units before GELU.
      after: the gradient after it.
    """
    units, slope = gelu(before.astype(jnp.float32))
    gradient = after.astype(jnp.float32) * slope
    return units.astype(before.dtype), gradient.astype(before.dtype)
