"""A masked linear layer of few features, with the gradient of its result."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp import BlockMask, sparse_linear

IN, OUT, CHANNELS, BLOCK, RATIO = 6, 8, 3, (4, 2), 0.6
MODES = ["masked", "dense", "straight_through"]
AXES = pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])


class Problem:
    """Random x, kernel, bias and dy, features last; a mask that is not random."""

    def __init__(self, batch: tuple[int, ...] = (2, CHANNELS), dtype: Any = jnp.float32) -> None:
        rng = np.random.default_rng(0)

        def draw(*shape: int) -> jax.Array:
            return jnp.asarray(rng.normal(size=shape), dtype)

        self.x, self.dy = draw(*batch, IN), draw(*batch, OUT)
        self.kernel, self.bias = draw(IN, OUT), draw(OUT)
        self.mask = BlockMask(jnp.array([0, 3, 4], jnp.int32), (IN, OUT), BLOCK)

    def float64(self) -> tuple[np.ndarray, ...]:
        """The arrays x, kernel, bias, dy and the mask [in, out], as the library sees them."""
        arrays = (self.x, self.kernel, self.bias, self.dy, self.mask.dense())
        return tuple(np.asarray(a).astype(np.float64) for a in arrays)


def turned(a: Any, axis: int) -> Any:
    """From features last to the features on `axis`, and back."""
    return a if axis == -1 else a.swapaxes(-1, -2)


@functools.partial(jax.jit, static_argnames=("axis", "backward"))
def value_and_gradients(x, kernel, bias, mask, dy, axis, backward):
    def call(x, kernel, bias):
        return sparse_linear(x, kernel, bias, axis=axis, mask=mask, backward=backward)

    y, pull = jax.vjp(call, x, kernel, bias)
    return y, *pull(dy)
