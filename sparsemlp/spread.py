"""A parameter of each channel, spread over all rows so that its gradient is summed well."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.dense import sum_dtype


def spread(
    parameter: Float[Array, "..."], over: Float[Array, "..."], dtype: Any = None
) -> Float[Array, "..."]:
    """The parameter in the shape of an array.

    Left to itself, the gradient of what is spread is summed in the dtype of the array: with
    bfloat16 a sum over many rows comes to a stop as soon as it is 256 times a term. Here it is
    summed in float32 at least; the values are the same.

    Args:
      parameter: of a shape that can be broadcast to that of `over`.
      over: the array that it meets.
      dtype: of the result; None is the common one of both.

    Returns:
      An array of the shape of `over`.
    """
    wide = parameter.astype(sum_dtype(parameter))
    dtype = jnp.promote_types(parameter.dtype, over.dtype) if dtype is None else dtype
    return jnp.broadcast_to(wide, over.shape).astype(dtype)


def scaled(
    x: Float[Array, "..."], scale: Float[Array, "..."], dtype: Any = None
) -> Float[Array, "..."]:
    """`x * scale`, the scale spread over x; the backward pass keeps x and the scale as it is.

    Args:
      x: an array.
      scale: of a shape that can be broadcast to that of x.
      dtype: the scale is rounded to it; None is the common one of both.
    """
    multiply = functools.partial(_multiply, dtype=dtype)
    return jax.checkpoint(multiply, prevent_cse=False)(x, scale)


def _multiply(x: Array, scale: Array, dtype: Any) -> Array:
    return x * spread(scale, x, dtype)
