"""The native kernels for convolutions as functions of JAX arrays."""

import numpy as np
from jaxtyping import Array, Float, Int

from pallas_kernels.cpu.kernel_calls import at_once, block_options, or_empty, over_rows
from pallas_kernels.dense_convolution import Geometry
from pallas_kernels.sparse_layer import SparseLayer


def convolution(
    x: Float[Array, "batch height width in"],
    kernel: Float[Array, "down across in out"],
    bias: Float[Array, " out"] | None,
    kept: Int[Array, " k"],
    layer: SparseLayer,
    geometry: Geometry,
) -> Float[Array, "batch new_height new_width out"]:
    """The convolution with `W * M`, plus the bias."""
    size, image = (kernel.shape[0], kernel.shape[1]), (x.shape[1], x.shape[2])
    outputs = geometry.outputs(image, size)
    shape = (x.shape[0], *outputs, kernel.shape[3])
    call = over_rows("sparsemlp_convolution", shape, _options(layer, geometry))
    return call(x, kernel, or_empty(bias, x), kept)[0]


def input_gradient(
    dy: Float[Array, "batch new_height new_width out"],
    kernel: Float[Array, "down across in out"],
    kept: Int[Array, " k"],
    layer: SparseLayer,
    image: tuple[int, int],
    geometry: Geometry,
) -> Float[Array, "batch height width in"]:
    """The gradient of x, with `W * M`."""
    shape = (dy.shape[0], *image, kernel.shape[2])
    call = over_rows("sparsemlp_convolution_input_gradient", shape, _options(layer, geometry))
    return call(dy, kernel, kept)[0]


def gradients(
    x: Float[Array, "batch height width in"],
    dy: Float[Array, "batch new_height new_width out"],
    kept: Int[Array, " k"],
    layer: SparseLayer,
    kernel_size: tuple[int, int],
    geometry: Geometry,
) -> tuple[Float[Array, "down across in out"], Float[Array, " out"]]:
    """`dW * M`, and db."""
    shapes = ((*kernel_size, x.shape[3], dy.shape[3]), (dy.shape[3],))
    options = _options(layer, geometry)
    dw, db = at_once("sparsemlp_convolution_gradient", shapes, options)(x, dy, kept)
    return dw, db


def _options(layer: SparseLayer, geometry: Geometry) -> tuple[tuple[str, np.int64], ...]:
    (down, across), ((above, _), (left, _)) = geometry.strides, geometry.padding
    walk = {"stride_down": down, "stride_across": across, "above": above, "left": left}
    return (*block_options(layer).items(), *((name, np.int64(n)) for name, n in walk.items()))
