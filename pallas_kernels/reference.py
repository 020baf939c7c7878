"""Engine `reference`: dense products by XLA over an elementwise masked kernel.

It saves nothing, and it defines what every other engine computes.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import dense, dense_convolution
from pallas_kernels.dense_convolution import Geometry
from pallas_kernels.engine import Engine
from pallas_kernels.layout import Kept, dense_mask
from pallas_kernels.sparse_layer import Phase, SparseLayer


class Reference(Engine):
    """Masks the kernel, or its gradient, and multiplies dense. Runs everywhere.

    Alone among the engines it takes the kept blocks as a grid of booleans as well.
    """

    name = "reference"
    convolves = True

    def reason_against(self, layer: SparseLayer, platform: str) -> str | None:
        """None: there is no layer and no platform that this engine cannot do."""
        return None

    def product(
        self,
        x: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        bias: Float[Array, " out"] | None,
        kept: Kept,
        layer: SparseLayer,
    ) -> Float[Array, "..."]:
        """`y = x (W * M) + b`."""
        return dense.product(x, _masked_once(kernel, kept, layer), bias, layer.axis)

    def input_gradient(
        self,
        dy: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        kept: Kept,
        layer: SparseLayer,
    ) -> Float[Array, "..."]:
        """`dx = dy (W * M)^T`."""
        return dense.input_gradient(dy, _masked_once(kernel, kept, layer), layer.axis)

    def kernel_gradient(
        self,
        x: Float[Array, "..."],
        dy: Float[Array, "..."],
        kept: Kept,
        layer: SparseLayer,
    ) -> Float[Array, "in out"]:
        """`dW = (x^T dy) * M`, exactly zero in dropped blocks."""
        return _masked(dense.kernel_gradient(x, dy, layer.axis), kept, layer)

    def pays_convolving(self, phase: Phase, layer: SparseLayer, n_rows: int) -> bool:
        """Where no other engine does."""
        return True

    def convolution(
        self,
        x: Float[Array, "batch height width in"],
        kernel: Float[Array, "window_height window_width in out"],
        bias: Float[Array, " out"] | None,
        kept: Kept,
        layer: SparseLayer,
        geometry: Geometry,
    ) -> Float[Array, "batch new_height new_width out"]:
        """The convolution with `W * M`, plus the bias."""
        y = dense_convolution.product(x, _masked_windows(kernel, kept, layer), geometry)
        return y if bias is None else y + bias[None, None, None, :]

    def convolution_input_gradient(
        self,
        dy: Float[Array, "batch new_height new_width out"],
        kernel: Float[Array, "window_height window_width in out"],
        kept: Kept,
        layer: SparseLayer,
        image: tuple[int, int],
        geometry: Geometry,
    ) -> Float[Array, "batch height width in"]:
        """The gradient of x, with `W * M`."""
        masked = _masked_windows(kernel, kept, layer)
        return dense_convolution.input_gradient(dy, masked, image, geometry)

    def convolution_gradients(
        self,
        x: Float[Array, "batch height width in"],
        dy: Float[Array, "batch new_height new_width out"],
        kept: Kept,
        layer: SparseLayer,
        kernel_size: tuple[int, int],
        geometry: Geometry,
    ) -> tuple[Float[Array, "window_height window_width in out"], Float[Array, " out"]]:
        """The gradients of the kernel, exactly zero in dropped blocks, and of the bias."""
        dw = dense_convolution.kernel_gradient(x, dy, kernel_size, geometry)
        return _masked_windows(dw, kept, layer), dense.bias_gradient(dy, -1)


def _masked(
    kernel: Float[Array, "in out"], kept: Kept, layer: SparseLayer
) -> Float[Array, "in out"]:
    mask = dense_mask(kept, layer.kernel_shape, layer.block)
    return jnp.where(mask, kernel, jnp.zeros_like(kernel))


def _masked_windows(
    kernel: Float[Array, "window_height window_width in out"], kept: Kept, layer: SparseLayer
) -> Float[Array, "window_height window_width in out"]:
    return _masked(kernel.reshape(layer.kernel_shape), kept, layer).reshape(kernel.shape)


def _masked_once(
    kernel: Float[Array, "in out"], kept: Kept, layer: SparseLayer
) -> Float[Array, "in out"]:
    """The masked kernel in memory; XLA would mask it anew for each sample along the tokens."""
    return jax.lax.optimization_barrier(_masked(kernel, kept, layer))
