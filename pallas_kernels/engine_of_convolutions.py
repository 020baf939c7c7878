"""What an engine may compute besides the products of a layer: those of a masked convolution."""

from jaxtyping import Array, Float, Int

from pallas_kernels.dense_convolution import Geometry
from pallas_kernels.sparse_layer import Phase, SparseLayer

CONVOLUTIONS = {
    "product": "convolution",
    "input_gradient": "convolution_input_gradient",
    "kernel_gradient": "convolution_gradients",
}
"""The methods below by the product of the matrix that each is; tables of measurements know them by
these names."""


class EngineOfConvolutions:
    """Convolutions whose kernel keeps some blocks of its matrix; here, none is computed.

    Images are `[batch, height, width, channels]`, a kernel `[down, across, in, out]`; blocks are
    those of the matrix `[down * across * in, out]`, which is the kernel of the layer.
    """

    convolves: bool = False
    """Whether the three products below are computed, wherever those of layers are."""

    def reason_against_convolving(self, layer: SparseLayer, n_channels: int) -> str | None:
        """Why a convolution cannot be computed whose matrix can; None if it can.

        Args:
          layer: the matrix of the kernel.
          n_channels: of the images that it is applied to.
        """
        return None

    def pays_convolving(self, phase: Phase, layer: SparseLayer, n_rows: int) -> bool:
        """Whether it is expected to be faster than XLA's dense convolution, by measurement.

        Args:
          phase: `product`, `input_gradient` or `kernel_gradient`.
          layer: the matrix of the kernel.
          n_rows: pixels of the output, of all images.
        """
        return False

    def convolution(
        self,
        x: Float[Array, "batch height width in"],
        kernel: Float[Array, "down across in out"],
        bias: Float[Array, " out"] | None,
        kept: Int[Array, " k"],
        layer: SparseLayer,
        geometry: Geometry,
    ) -> Float[Array, "batch new_height new_width out"]:
        """The convolution with `W * M`, plus the bias.

        Args:
          x: images.
          kernel: its dropped blocks are not read.
          bias: `[out]`, or None.
          kept: flat ids of the kept blocks, ascending.
          layer: the matrix of the kernel.
          geometry: how the kernel walks over the images.
        """
        raise NotImplementedError

    def convolution_input_gradient(
        self,
        dy: Float[Array, "batch new_height new_width out"],
        kernel: Float[Array, "down across in out"],
        kept: Int[Array, " k"],
        layer: SparseLayer,
        image: tuple[int, int],
        geometry: Geometry,
    ) -> Float[Array, "batch height width in"]:
        """The gradient of x, whose images are of the size `image`, with `W * M`."""
        raise NotImplementedError

    def convolution_gradients(
        self,
        x: Float[Array, "batch height width in"],
        dy: Float[Array, "batch new_height new_width out"],
        kept: Int[Array, " k"],
        layer: SparseLayer,
        kernel_size: tuple[int, int],
        geometry: Geometry,
    ) -> tuple[Float[Array, "down across in out"], Float[Array, " out"]]:
        """The gradients of the kernel, exactly zero in dropped blocks, and of the bias."""
        raise NotImplementedError
