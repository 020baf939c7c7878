"""The three products of a dense convolution, by XLA.

Images are `[batch, height, width, channels]`, kernels `[height, width, in, out]`. Nothing is
unfolded: XLA has a convolution for each of the three, and at stride 1 the kernel's gradient is also
a product of pixels for each position of the kernel.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from pallas_kernels import dense

Padding = tuple[tuple[int, int], tuple[int, int]]

_BY_POSITION_ON_CPU = 128
"""Input channels from which processors take the kernel's gradient by position. Measured with 3x3
kernels on a Xeon: 1.8 to 2.1 times as fast as XLA's convolution at 256 and 512, as fast at 64."""


@dataclasses.dataclass(frozen=True)
class Geometry:
    """How a kernel walks over an image.

    Attributes:
      strides: pixels from one output to the next, `(down, across)`.
      padding: rows of zeros above and below, columns of zeros left and right.
    """

    strides: tuple[int, int]
    padding: Padding

    def reads_pixels_alone(self, kernel_size: tuple[int, int]) -> bool:
        """Whether every output depends on one pixel: a linear layer over the channels."""
        return kernel_size == (1, 1) and self.padding == ((0, 0), (0, 0))


def product(
    x: Float[Array, "batch height width in"],
    kernel: Float[Array, "down across in out"],
    geometry: Geometry,
) -> Float[Array, "batch new_height new_width out"]:
    """`y[b, p, q, o] = sum_ijc kernel[i, j, c, o] x[b, p s + i - low, q s + j - low, c]`."""
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        geometry.strides,
        geometry.padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def input_gradient(
    dy: Float[Array, "batch new_height new_width out"],
    kernel: Float[Array, "down across in out"],
    image: tuple[int, int],
    geometry: Geometry,
) -> Float[Array, "batch height width in"]:
    """The gradient of x, whose images are of the size `image`, from that of y."""
    shape = (dy.shape[0], *image, kernel.shape[2])
    (dx,) = jax.linear_transpose(lambda x: product(x, kernel, geometry), _alike(dy, shape))(dy)
    return dx


def kernel_gradient(
    x: Float[Array, "batch height width in"],
    dy: Float[Array, "batch new_height new_width out"],
    kernel_size: tuple[int, int],
    geometry: Geometry,
) -> Float[Array, "down across in out"]:
    """The gradient of the kernel from x and that of y, by XLA's convolution or by position."""
    if (
        jax.default_backend() == "cpu"
        and geometry.strides == (1, 1)
        and x.shape[3] >= _BY_POSITION_ON_CPU
    ):
        image = (x.shape[1], x.shape[2])
        return by_position(
            lambda seen: dense.kernel_gradient(x, seen, -1), dy, kernel_size, image, geometry
        )
    shape = (*kernel_size, x.shape[3], dy.shape[3])
    (dw,) = jax.linear_transpose(lambda w: product(x, w, geometry), _alike(dy, shape))(dy)
    return dw


def _alike(dy: Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """An array of some shape that varies over the mesh axes of dy."""
    own = jax.typeof(dy)
    sharding = None if own.sharding.mesh.empty else NamedSharding(own.sharding.mesh, P())
    return jax.ShapeDtypeStruct(
        shape, dy.dtype, sharding=sharding, manual_axis_type=own.manual_axis_type
    )


def by_position(
    product: Callable[[Array], Array],
    dy: Float[Array, "batch new_height new_width out"],
    kernel_size: tuple[int, int],
    image: tuple[int, int],
    geometry: Geometry,
) -> Float[Array, "down across in out"]:
    """The kernel's gradient at stride 1, from what each of its positions sees of dy.

    One position after the other, so that dy is there but twice.

    Args:
      product: the product `[in, out]` of x, as rows of pixels, and an array of x's height and width
        that is dy as seen from a position, zero where a pixel of x meets no output there.
      dy: the gradient of the output.
      kernel_size: `(down, across)`.
      image: `(height, width)` of x.
      geometry: of stride 1.
    """
    down, across = kernel_size
    sides = [
        (size - 1 - low, size - 1 - high)
        for size, (low, high) in zip(kernel_size, geometry.padding, strict=True)
    ]
    padded = jax.lax.pad(
        dy, jnp.zeros((), dy.dtype), [(0, 0, 0), *((a, b, 0) for a, b in sides), (0, 0, 0)]
    )
    seen = (dy.shape[0], *image, dy.shape[3])

    def at(position: Array) -> Array:
        row, column = down - 1 - position // across, across - 1 - position % across
        zero = jnp.zeros_like(row)  # as wide as the others, whatever jax_enable_x64 says
        return product(jax.lax.dynamic_slice(padded, (zero, row, column, zero), seen))

    found = jax.lax.map(at, jnp.arange(down * across, dtype=jnp.int32))
    return found.reshape(down, across, *found.shape[1:])
