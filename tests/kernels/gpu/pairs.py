"""Pairs of layers whose kernels have several tiles, with what they compute in float64."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import reference_mlp

from pallas_kernels import SparseLayer, Weights
from pallas_kernels.layout import dense_mask


class Pair(NamedTuple):
    """Operands of two layers.

    Attributes:
      x: `[rows, width]`.
      dy: likewise.
      weights: of both layers.
      layers: both layers.
      wanted: each result with its mass, as `reference_mlp.mlp`, x being added to y.
    """

    x: jax.Array
    dy: jax.Array
    weights: tuple[Weights, Weights]
    layers: tuple[SparseLayer, SparseLayer]
    wanted: dict[str, tuple[np.ndarray, np.ndarray]]


def draw(
    blocks: tuple[tuple[int, int], tuple[int, int]],
    n_rows: int,
    width: int,
    hidden: int,
    dtype: str = "float32",
) -> Pair:
    """A random pair; a column of W1 is empty, another row of W2, and one of each is full."""
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 1.0) -> jax.Array:
        return jnp.asarray(scale * rng.normal(size=shape), dtype)

    weights, layers, exact = [], [], []
    for n_in, n_out, (rows, cols) in ((width, hidden, blocks[0]), (hidden, width, blocks[1])):
        grid = rng.random((n_in // cols, n_out // rows)) < 0.5
        lines = grid.T if n_out == hidden else grid
        lines[0], lines[-1], lines[1 if n_out == hidden else 2] = True, True, False
        kept = jnp.asarray(np.flatnonzero(grid), jnp.int32)
        layer = SparseLayer((n_in, n_out), (rows, cols), kept.size, -1, dtype)
        own = Weights(normal(n_in, n_out, scale=n_in**-0.5), normal(n_out), kept)
        mask = np.asarray(dense_mask(kept, layer.kernel_shape, layer.block))
        weights.append(own)
        layers.append(layer)
        kernel, bias = (np.asarray(a, np.float64) for a in own[:2])
        exact.append(reference_mlp.Layer(kernel, bias, mask))
    x, dy = normal(n_rows, width), normal(n_rows, width)
    ones = np.ones(width)
    wanted = reference_mlp.mlp(
        np.asarray(x, np.float64),
        np.asarray(dy, np.float64),
        exact[0],
        exact[1],
        scale=ones,
        shift=np.zeros(width),
        after=ones,
        residual=True,
    )
    return Pair(x, dy, (weights[0], weights[1]), (layers[0], layers[1]), wanted)


def assert_near(pair: Pair, **found: Any) -> None:
    """Raises AssertionError unless each array is near what is wanted of its name."""
    e = reference_mlp.share(pair.x.dtype, max(pair.x.shape[0], pair.layers[0].kernel_shape[1]))
    for name, array in found.items():
        reference_mlp.assert_near(array, pair.wanted[name], e, name)
