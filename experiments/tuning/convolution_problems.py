"""A problem of a kernel for masked convolutions as arrays."""

import math

import jax
import jax.numpy as jnp

from pallas_kernels import Engine, SparseLayer, dense, dense_convolution
from pallas_kernels.dense_convolution import Geometry
from tuning.work import Work, kept_blocks

SIZE = (3, 3)
"""Height and width of the kernels that are tuned, the most usual ones."""
GEOMETRY = Geometry((1, 1), ((1, 1), (1, 1)))
_SIDES = (16, 8, 1)
"""Of images: the first whose pixels divide the rows."""


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


def convolution_work(kernel: str, layer: SparseLayer, n_rows: int) -> Work:
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
        for key, n in zip(keys[:2], (n_in, n_out), strict=True)
    )
    w = jax.random.normal(keys[2], (*SIZE, n_in, n_out), dtype)
    w, bias = w / jnp.asarray(layer.kernel_shape[0] ** 0.5, dtype), jnp.ones(n_out, dtype)
    match kernel:
        case "convolution":
            return Work(
                lambda e: (
                    lambda x, w, b, kept: e.convolution(x, w, b, e.taken(kept), layer, GEOMETRY)
                ),
                lambda x, w, b, kept: dense_convolution.product(x, w, GEOMETRY) + b,
                (x, w, bias, kept_blocks(layer)),
                layer.kernel_shape[0],
            )
        case "convolution_input_gradient":
            return Work(
                lambda e: (
                    lambda dy, w, kept: e.convolution_input_gradient(
                        dy, w, e.taken(kept), layer, image, GEOMETRY
                    )
                ),
                lambda dy, w, kept: dense_convolution.input_gradient(dy, w, image, GEOMETRY),
                (dy, w, kept_blocks(layer)),
                math.prod(SIZE) * n_out,
            )
    return Work(
        lambda e: (
            lambda x, dy, kept: e.convolution_gradients(x, dy, e.taken(kept), layer, SIZE, GEOMETRY)
        ),
        lambda x, dy, kept: (
            dense_convolution.kernel_gradient(x, dy, SIZE, GEOMETRY),
            dense.bias_gradient(dy, -1),
        ),
        (x, dy, kept_blocks(layer)),
        n_rows,
    )
