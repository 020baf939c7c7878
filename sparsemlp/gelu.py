"""GELU by the error function, and what its backward pass keeps."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.dense import sum_dtype


@jax.custom_jvp
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The exact GELU, `x (1 + erf(x / sqrt 2)) / 2`, elementwise, in float32 at least.

    In bfloat16 `1 + erf` would cancel where x is negative: at -3 it would be off by 45%. The
    backward pass keeps its slope, in the dtype of x, and nothing else.
    """
    return _gelu_and_slope(x)[0].astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (direction,) = primals, tangents
    value, slope = _gelu_and_slope(x)
    return value.astype(x.dtype), slope.astype(x.dtype) * direction


def _gelu_and_slope(x: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    x = x.astype(sum_dtype(x))
    half, scale, density = (jnp.asarray(n, x.dtype) for n in (0.5, 2**-0.5, (2 * math.pi) ** -0.5))
    distribution = half * (1 + jax.lax.erf(x * scale))
    return x * distribution, distribution + x * density * jnp.exp(-half * x * x)
