"""Masked convolutions by engine `triton`."""

import math

from jaxtyping import Array, Float

from pallas_kernels import dense
from pallas_kernels.dense_convolution import Geometry
from pallas_kernels.engine_of_convolutions import CONVOLUTIONS, EngineOfConvolutions
from pallas_kernels.lists import KeptBlocks, ids_of
from pallas_kernels.reference import Reference
from pallas_kernels.sparse_layer import Phase, SparseLayer
from pallas_kernels.triton import convolution_gradient, convolution_products
from pallas_kernels.triton.configurations import VERSION
from pallas_kernels.triton.pixels import Pixels
from pallas_kernels.tuning import pays

_REFERENCE = Reference()
MOST_OF_DENSE = 0.6
"""Of XLA's time that a kernel may take where `auto` takes it. Of the images that are tuned, 16x16,
1.27 rows are computed for each output; of smaller ones up to several times as many."""
_MOST_NUMBERS = 2**31
"""Of images as rows: kernels, whose integers have 32 bits, tell so many apart."""


class TritonConvolutions(EngineOfConvolutions):
    """Multiplies shifted rows of pixels by the kept blocks; windows are not unfolded.

    Images are copied once with their padding, and what is computed at places of that where no
    window begins is dropped: of images of 16x16 and a 3x3 kernel a fifth. Batches of 2^31 numbers
    and more are left to the reference. `auto` goes by the table of the GPU, which `tune.py --kernel
    convolution convolution_input_gradient convolution_gradients` adds them to; on an H200, in
    bfloat16 at ratio 0.8, none was so much faster than XLA that `auto` would take it.

    Attributes:
      interpret: whether JAX interprets the kernels instead of compiling them.
    """

    convolves = True
    interpret: bool

    def reason_against_convolving(self, layer: SparseLayer, n_channels: int) -> str | None:
        """Why not: a block has rows of two positions of the kernel."""
        cols = layer.block[1]
        if n_channels % cols:
            return (
                f"blocks have to lie in one position of a convolution's kernel, so {cols} columns "
                f"must divide its {n_channels} input channels"
            )
        return None

    def pays_convolving(self, phase: Phase, layer: SparseLayer, n_rows: int) -> bool:
        """Where the table of this GPU says so by far: other images may have more padding."""
        return pays(layer.problem("triton", VERSION, CONVOLUTIONS[phase], n_rows), MOST_OF_DENSE)

    def convolution(
        self,
        x: Float[Array, "batch height width in"],
        kernel: Float[Array, "down across in out"],
        bias: Float[Array, " out"] | None,
        kept: KeptBlocks,
        layer: SparseLayer,
        geometry: Geometry,
    ) -> Float[Array, "batch new_height new_width out"]:
        """The convolution with `W * M`, plus the bias."""
        size = (kernel.shape[0], kernel.shape[1])
        pixels = Pixels(x.shape[0], (x.shape[1], x.shape[2]), size, geometry)
        if not _takes(pixels, kept, layer):
            return _REFERENCE.convolution(x, kernel, bias, ids_of(kept), layer, geometry)
        matrix = kernel.reshape(layer.kernel_shape)
        return convolution_products.convolution(
            x, matrix, bias, kept, layer, pixels, interpret=self.interpret
        )

    def convolution_input_gradient(
        self,
        dy: Float[Array, "batch new_height new_width out"],
        kernel: Float[Array, "down across in out"],
        kept: KeptBlocks,
        layer: SparseLayer,
        image: tuple[int, int],
        geometry: Geometry,
    ) -> Float[Array, "batch height width in"]:
        """The gradient of x, with `W * M`."""
        pixels = Pixels(dy.shape[0], image, (kernel.shape[0], kernel.shape[1]), geometry)
        if not _takes(pixels, kept, layer):
            ids = ids_of(kept)
            return _REFERENCE.convolution_input_gradient(dy, kernel, ids, layer, image, geometry)
        matrix = kernel.reshape(layer.kernel_shape)
        return convolution_products.input_gradient(
            dy, matrix, kept, layer, pixels, interpret=self.interpret
        )

    def convolution_gradients(
        self,
        x: Float[Array, "batch height width in"],
        dy: Float[Array, "batch new_height new_width out"],
        kept: KeptBlocks,
        layer: SparseLayer,
        kernel_size: tuple[int, int],
        geometry: Geometry,
    ) -> tuple[Float[Array, "down across in out"], Float[Array, " out"]]:
        """The gradients of the kernel, exactly zero in dropped blocks, and of the bias."""
        pixels = Pixels(x.shape[0], (x.shape[1], x.shape[2]), kernel_size, geometry)
        if not _takes(pixels, kept, layer):
            ids = ids_of(kept)
            return _REFERENCE.convolution_gradients(x, dy, ids, layer, kernel_size, geometry)
        dw = convolution_gradient.kernel_gradient(
            x, dy, kept, layer, pixels, interpret=self.interpret
        )
        dw = dw.reshape(*kernel_size, x.shape[3], dy.shape[3])
        return dw, dense.bias_gradient(dy, -1)


def _takes(pixels: Pixels, kept: KeptBlocks, layer: SparseLayer) -> bool:
    """Whether there is something to multiply, in arrays that are not too large."""
    n_positions = math.prod(pixels.kernel_size)
    n_features = max(layer.kernel_shape[0] // n_positions, layer.kernel_shape[1])
    n_numbers = pixels.n_phases * pixels.padded_rows * n_features
    return bool(pixels.n_rows) and bool(kept.size) and n_numbers < _MOST_NUMBERS
