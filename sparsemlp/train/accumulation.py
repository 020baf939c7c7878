"""A batch that is computed in parts, one after another, with the memory of a part."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from sparsemlp.varying import computing_part


def size_of_parts(n_samples: int, most: int) -> int:
    """Samples in each part where at most so many fit: the fewest parts, as equal as they can be.

    The last part is filled up where they cannot be equal: 83 samples of which 32 fit make three
    parts of 28, and one sample of the last does not count.
    """
    n_parts = -(-n_samples // max(1, most))
    return -(-n_samples // max(1, n_parts))


def sum_over_parts(
    function: Callable[..., tuple[Any, Any]], samples: tuple[Array, ...], start: Any, size: int
) -> tuple[Any, Any]:
    """Calls `function(*samples)` on parts of the samples, in one loop of the compiled program.

    What is random in it is drawn by `varying.draw_part`, and is that of the whole batch.

    Args:
      function: returns `(summed, mapped)`: what is added up over the parts, and what has the first
        axis of the samples. Samples of zeros, which fill up the last part, must add nothing.
      samples: operands with the samples in their first axis.
      start: zeros in the form of `summed`.
      size: samples in a part; if these are all of them, the function is called on them as it is.

    Returns:
      `(summed, mapped)` of all samples.
    """
    n_samples = samples[0].shape[0]
    if size >= n_samples:
        return function(*samples)
    n_parts = -(-n_samples // size)

    def cut(a: Array) -> Array:
        filled = jnp.pad(a, ((0, n_parts * size - n_samples), *((0, 0) for _ in a.shape[1:])))
        return filled.reshape(n_parts, size, *a.shape[1:])

    def add(total: Any, part: tuple[Array, tuple[Array, ...]]) -> tuple[Any, Any]:
        index, own = part
        with computing_part(index * size, n_samples):
            summed, mapped = function(*own)
        return jax.tree.map(jnp.add, total, summed), mapped

    parts = jnp.arange(n_parts, dtype=jnp.int32), tuple(map(cut, samples))
    total, mapped = jax.lax.scan(add, start, parts)

    def joined(a: Array) -> Array:
        return a.reshape(n_parts * size, *a.shape[2:])[:n_samples]

    return total, jax.tree.map(joined, mapped)
