"""A problem of a kernel for masked convolutions as arrays; of `kernel_problems` those of images."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import Engine, SparseLayer, dense, dense_convolution
from pallas_kernels.dense_convolution import Geometry

SIZE = (3, 3)
"""Height and width of the kernels that are tuned, the most usual ones."""
GEOMETRY = Geometry((1, 1), ((1, 1), (1, 1)))
_SIDES = (16, 8, 1)
"""Of images: the first whose pixels divide the rows."""


class ImageWork(NamedTuple):
    """What is timed and checked of a convolution: as `kernel_problems.Work`, without kept blocks.

    Attributes:
      sparse: `sparse(engine)(*operands, kept)`.
      dense: `dense(*operands, kept)`.
      operands: arrays.
      n_terms: how many products a number of the result sums, at most.
    """

    sparse: Callable[[Engine], Callable[..., Any]]
    dense: Callable[..., Any]
    operands: tuple[Any, ...]
    n_terms: int


def n_channels(layer: SparseLayer) -> int:
    """Channels of the images that a kernel of this matrix is applied to."""
    return layer.kernel_shape[0] // math.prod(SIZE)


def is_convolved(engine: Engine, layer: SparseLayer) -> bool:
    """Whether an engine has kernels for such a convolution."""
    return (
        engine.convolves
        and engine.reason_against(layer, "gpu") is None
        and engine.reason_against_convolving(layer, n_channels(layer)) is None
    )


def convolution_work(kernel: str, layer: SparseLayer, n_rows: int) -> ImageWork:
    """The work of a kernel.

    Args:
      kernel: one of `CONVOLUTIONS`.
      layer: the matrix of a kernel of `SIZE`.
      n_rows: pixels of all images.
    """
    side = next(side for side in _SIDES if n_rows % side**2 == 0)
    image, n_in, n_out = (side, side), n_channels(layer), layer.kernel_shape[1]
    keys, dtype = jax.random.split(jax.random.key(0), 3), jnp.dtype(layer.dtype)
    x, dy = (
        jax.random.normal(key, (n_rows // side**2, *image, n), dtype)
        for key, n in zip(keys, (n_in, n_out), strict=False)
    )
    w = jax.random.normal(keys[2], (*SIZE, n_in, n_out), dtype)
    w, bias = w / jnp.asarray(layer.kernel_shape[0] ** 0.5, dtype), jnp.ones(n_out, dtype)
    match kernel:
        case "convolution":
            return ImageWork(
                lambda e: (
                    lambda x, w, b, kept: e.convolution(x, w, b, e.taken(kept), layer, GEOMETRY)
                ),
                lambda x, w, b, kept: dense_convolution.product(x, w, GEOMETRY) + b,
                (x, w, bias),
                layer.kernel_shape[0],
            )
        case "convolution_input_gradient":
            return ImageWork(
                lambda e: (
                    lambda dy, w, kept: e.convolution_input_gradient(
                        dy, w, e.taken(kept), layer, image, GEOMETRY
                    )
                ),
                lambda dy, w, kept: dense_convolution.input_gradient(dy, w, image, GEOMETRY),
                (dy, w),
                math.prod(SIZE) * n_out,
            )
    return ImageWork(
        lambda e: (
            lambda x, dy, kept: e.convolution_gradients(x, dy, e.taken(kept), layer, SIZE, GEOMETRY)
        ),
        lambda x, dy, kept: (
            dense_convolution.kernel_gradient(x, dy, SIZE, GEOMETRY),
            dense.bias_gradient(dy, -1),
        ),
        (x, dy),
        n_rows,
    )
