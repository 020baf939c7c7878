"""The products of one convolution whose operands may be sparse."""

import dataclasses
import functools

import jax
from jaxtyping import Array

from pallas_kernels import Engine, dense, dense_convolution
from pallas_kernels.dense_convolution import Geometry
from sparsemlp.differentiable import Layer
from sparsemlp.gradient_pruning import prune_gradient
from sparsemlp.image_activations import CompactImage, compact_image, skips
from sparsemlp.masked_kernel import MaskedKernel
from sparsemlp.rules import ActivationPooling, ActivationPruning, GradientPruning


@dataclasses.dataclass(frozen=True)
class ConvolutionLayer(Layer):
    """What is static about a convolution besides its mask.

    Attributes:
      geometry: how the kernel walks over the images.
      kernel_size: `(down, across)`.
      image: height and width of an image.
      activation: what is kept of x, if not all.
      gradient: how dY is pruned for dX, if at all.
      engine: who prunes x and dY, and multiplies what is kept of x.
    """

    geometry: Geometry
    kernel_size: tuple[int, int]
    image: tuple[int, int]
    activation: ActivationPruning | ActivationPooling | None
    gradient: GradientPruning | None
    engine: Engine

    def keep(self, x: Array) -> Array | CompactImage:
        """What the backward pass is given of x."""
        if self.activation is None:
            return x
        kept = compact_image(x, self.activation, self.engine)
        return x if kept is None else kept

    def product(
        self, x: Array, kernel: Array, bias: Array | None, masked: MaskedKernel | None
    ) -> Array:
        """The output."""
        if masked is not None:
            own = masked.engines.product
            return own.convolution(
                x, kernel, bias, masked.kept.product, masked.matrix, self.geometry
            )
        y = dense_convolution.product(x, kernel, self.geometry)
        return y if bias is None else y + bias[None, None, None, :]

    def input_gradient(
        self, dy: Array, kernel: Array, masked: MaskedKernel | None, rng: Array | None
    ) -> Array:
        """The gradient of x."""
        if self.gradient is not None:
            dy = prune_gradient(dy, self.gradient, self.engine, rng=rng)
        if masked is None or masked.backward == "dense":
            return dense_convolution.input_gradient(dy, kernel, self.image, self.geometry)
        return masked.engines.input_gradient.convolution_input_gradient(
            dy, kernel, masked.kept.input_gradient, masked.matrix, self.image, self.geometry
        )

    def parameter_gradients(
        self,
        kept: Array | CompactImage,
        dy: Array,
        masked: MaskedKernel | None,
        *,
        has_bias: bool,
    ) -> tuple[Array, Array | None]:
        """The gradients of the kernel and of the bias, from what was kept of x."""
        return _parameter_gradients(self, kept, dy, masked, has_bias=has_bias)


# What is mapped over the positions of a kernel is a new function at every call, which JAX would
# compile anew where nothing around it is compiled.
@functools.partial(jax.jit, static_argnums=0, static_argnames="has_bias")
def _parameter_gradients(
    layer: ConvolutionLayer,
    kept: Array | CompactImage,
    dy: Array,
    masked: MaskedKernel | None,
    *,
    has_bias: bool,
) -> tuple[Array, Array | None]:
    if masked is not None and masked.backward != "masked":
        masked = None  # dW is that of a whole kernel
    if masked is not None and not isinstance(kept, CompactImage):
        own, blocks = masked.engines.kernel_gradient, masked.kept.kernel_gradient
        size, geometry = layer.kernel_size, layer.geometry
        dw, db = own.convolution_gradients(kept, dy, blocks, masked.matrix, size, geometry)
        return dw, db if has_bias else None
    dw = _whole_gradient(layer, kept, dy)
    dw = dw if masked is None else masked.zero_dropped(dw)
    return dw, dense.bias_gradient(dy, -1) if has_bias else None


def _whole_gradient(layer: ConvolutionLayer, kept: Array | CompactImage, dy: Array) -> Array:
    """The gradient of a whole kernel."""
    size, geometry, engine = layer.kernel_size, layer.geometry, layer.engine
    if not isinstance(kept, CompactImage):
        return dense_convolution.kernel_gradient(kept, dy, size, geometry)
    if geometry.strides != (1, 1) or not skips(kept, engine):
        return dense_convolution.kernel_gradient(kept.dense(), dy, size, geometry)
    return dense_convolution.by_position(
        lambda seen: kept.kernel_gradient(seen, engine), dy, size, layer.image, geometry
    )
