"""The products of one convolution whose operands may be sparse."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels import Engine, SparseLayer, dense, dense_convolution, layout
from pallas_kernels.dense_convolution import Geometry
from sparsemlp.engines import choose_convolving, choose_for_grid
from sparsemlp.image_activations import CompactImage, compact_image, skips
from sparsemlp.masks import GridMask, KeptByProduct, Mask
from sparsemlp.rules import ActivationPooling, ActivationPruning, Backward, GradientPruning


@dataclasses.dataclass(frozen=True)
class MaskedMatrix:
    """A masked kernel as a matrix.

    Attributes:
      matrix: its shape and blocks.
      engines: who computes Y, dX and dW with it.
    """

    matrix: SparseLayer
    engines: tuple[Engine, Engine, Engine]


def masked_matrix(
    mask: Mask, engine: str, dtype: str, n_channels: int, n_rows: int
) -> MaskedMatrix:
    """The matrix that a mask is for, and the engines of that name, or with `auto` the best.

    Args:
      mask: the mask.
      engine: `auto`, or the name of an engine.
      dtype: of the operands.
      n_channels: of the images.
      n_rows: pixels of the output, of all images.

    Raises:
      InputError: the engine does not exist, or cannot compute this here.
    """
    if isinstance(mask, GridMask):
        matrix = SparseLayer(mask.kernel_shape, mask.block, mask.n_blocks, -1, dtype)
        own = choose_for_grid(engine)
        return MaskedMatrix(matrix, (own, own, own))
    matrix = SparseLayer(mask.kernel_shape, mask.block, mask.n_kept, -1, dtype)
    engines = (
        choose_convolving(engine, matrix, "product", n_channels, n_rows),
        choose_convolving(engine, matrix, "input_gradient", n_channels, n_rows),
        choose_convolving(engine, matrix, "kernel_gradient", n_channels, n_rows),
    )
    return MaskedMatrix(matrix, engines)


@dataclasses.dataclass(frozen=True)
class ConvolutionLayer:
    """What is static about a convolution.

    Attributes:
      geometry: how the kernel walks over the images.
      kernel_size: `(down, across)`.
      image: height and width of an image.
      backward: what the backward pass does with the mask.
      activation: what is kept of x, if not all.
      gradient: how dY is pruned for dX, if at all.
      engine: who prunes x and dY, and multiplies what is kept of x.
      masked: the masked kernel; None: it is whole.
    """

    geometry: Geometry
    kernel_size: tuple[int, int]
    image: tuple[int, int]
    backward: Backward
    activation: ActivationPruning | ActivationPooling | None
    gradient: GradientPruning | None
    engine: Engine
    masked: MaskedMatrix | None

    def keep(self, x: Array) -> Array | CompactImage:
        """What the backward pass is given of x."""
        if self.activation is None:
            return x
        kept = compact_image(x, self.activation, self.engine)
        return x if kept is None else kept

    def product(
        self, x: Array, kernel: Array, bias: Array | None, kept: KeptByProduct | None
    ) -> Array:
        """The output."""
        if self.masked is not None and kept is not None:
            matrix, own = self.masked.matrix, self.masked.engines[0]
            return own.convolution(x, kernel, bias, kept.product, matrix, self.geometry)
        y = dense_convolution.product(x, kernel, self.geometry)
        return y if bias is None else y + bias[None, None, None, :]

    def input_gradient(self, dy: Array, kernel: Array, kept: KeptByProduct | None) -> Array:
        """The gradient of x."""
        if self.masked is None or kept is None or self.backward == "dense":
            return dense_convolution.input_gradient(dy, kernel, self.image, self.geometry)
        return self.masked.engines[1].convolution_input_gradient(
            dy, kernel, kept.input_gradient, self.masked.matrix, self.image, self.geometry
        )

    def parameter_gradients(
        self, x: Array | CompactImage, dy: Array, kept: KeptByProduct | None
    ) -> tuple[Array, Array]:
        """The gradients of the kernel and of a bias, from what was kept of x."""
        if self.masked is None or kept is None or self.backward != "masked":
            return self._kernel_gradient(x, dy), dense.bias_gradient(dy, -1)
        matrix = self.masked.matrix
        if isinstance(x, CompactImage):
            mask = layout.dense_mask(kept.kernel_gradient, matrix.kernel_shape, matrix.block)
            dw = self._kernel_gradient(x, dy)
            return jnp.where(mask.reshape(dw.shape), dw, 0), dense.bias_gradient(dy, -1)
        return self.masked.engines[2].convolution_gradients(
            x, dy, kept.kernel_gradient, matrix, self.kernel_size, self.geometry
        )

    def _kernel_gradient(self, kept: Array | CompactImage, dy: Array) -> Array:
        """The gradient of a whole kernel."""
        if not isinstance(kept, CompactImage):
            return dense_convolution.kernel_gradient(kept, dy, self.kernel_size, self.geometry)
        engine = self.engine
        if self.geometry.strides != (1, 1) or not skips(kept, engine):
            x = kept.dense()
            return dense_convolution.kernel_gradient(x, dy, self.kernel_size, self.geometry)
        return dense_convolution.by_position(
            lambda seen: kept.kernel_gradient(seen, engine),
            dy,
            self.kernel_size,
            self.image,
            self.geometry,
        )
