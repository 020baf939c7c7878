"""Masked convolutions by engine `cpu`."""

import math

import numpy as np
from jaxtyping import Array, Float, Int

from pallas_kernels.cpu.kernel_calls import at_once, block_options, or_empty, over_rows
from pallas_kernels.dense_convolution import Geometry
from pallas_kernels.engine_of_convolutions import EngineOfConvolutions
from pallas_kernels.sparse_layer import Phase, SparseLayer

SMALLEST_RATIOS = ((32, 32, 0.0), (16, 16, 0.3), (16, 1, 0.8), (8, 8, 0.8))
"""For blocks at least so wide, along a vector and along the sums, the smallest ratio that pays.
Measured with 32x32 (also at 0), 16x16, 8x8, 4x4, 16x1, 1x16 and 8x32 at 0.3, 0.5 and 0.8; 128
images, of 32x32 also 1, 4 and 16; 3x3 kernels of 32 to 256 channels and a 5x5 one of stride 2; 2
cores of an AMD EPYC."""


class CpuConvolutions(EngineOfConvolutions):
    """Unfolds a few windows at a time in the cache and multiplies them by the kept blocks.

    dX is added up image by image, each by one thread.
    """

    convolves = True

    def pays_convolving(self, phase: Phase, layer: SparseLayer, n_rows: int) -> bool:
        """Where measured: from a ratio on that depends on the sides of the blocks."""
        rows, cols = layer.block
        lanes, depth = {
            "product": (rows, cols),
            "input_gradient": (cols, rows),
            "kernel_gradient": (min(rows, cols), min(rows, cols)),
        }[phase]
        n_blocks = math.prod(layer.kernel_shape) // (rows * cols)
        return any(
            lanes >= least_lanes
            and depth >= least_depth
            and layer.n_kept <= math.ceil(n_blocks * (1 - ratio))
            for least_lanes, least_depth, ratio in SMALLEST_RATIOS
        )

    def convolution(
        self,
        x: Float[Array, "batch height width in"],
        kernel: Float[Array, "down across in out"],
        bias: Float[Array, " out"] | None,
        kept: Int[Array, " k"],
        layer: SparseLayer,
        geometry: Geometry,
    ) -> Float[Array, "batch new_height new_width out"]:
        """The convolution with `W * M`, plus the bias."""
        size, image = (kernel.shape[0], kernel.shape[1]), (x.shape[1], x.shape[2])
        shape = (x.shape[0], *geometry.outputs(image, size), kernel.shape[3])
        call = over_rows("sparsemlp_convolution", shape, _options(layer, geometry))
        return call(x, kernel, or_empty(bias, x), kept)[0]

    def convolution_input_gradient(
        self,
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

    def convolution_gradients(
        self,
        x: Float[Array, "batch height width in"],
        dy: Float[Array, "batch new_height new_width out"],
        kept: Int[Array, " k"],
        layer: SparseLayer,
        kernel_size: tuple[int, int],
        geometry: Geometry,
    ) -> tuple[Float[Array, "down across in out"], Float[Array, " out"]]:
        """The gradients of the kernel and of the bias, from one pass over dy."""
        shapes = ((*kernel_size, x.shape[3], dy.shape[3]), (dy.shape[3],))
        options = _options(layer, geometry)
        dw, db = at_once("sparsemlp_convolution_gradient", shapes, options)(x, dy, kept)
        return dw, db


def _options(layer: SparseLayer, geometry: Geometry) -> tuple[tuple[str, np.int64], ...]:
    (down, across), ((above, _), (left, _)) = geometry.strides, geometry.padding
    walk = {"stride_down": down, "stride_across": across, "above": above, "left": left}
    return (*block_options(layer).items(), *((name, np.int64(n)) for name, n in walk.items()))
