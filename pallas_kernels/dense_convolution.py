"""The three products of a dense convolution, by XLA.

Images are `[batch, height, width, channels]`, kernels `[height, width, in, out]`. Nothing is
unfolded: XLA has a convolution for each of the three, and at stride 1 the kernel's gradient is also
a product of pixels for each position of the kernel.

XLA has fast convolutions for processors where the operands' axes are in the order of `product`, and
brings others to it, but not inside a loop, as a program of training steps is (jaxlib 0.12.0): there
a step of ResNet-9 takes 35 times as long. So here the two gradients are written in that order for
processors; for GPUs they are what XLA knows as gradients.
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

    def outputs(self, image: tuple[int, int], kernel_size: tuple[int, int]) -> tuple[int, int]:
        """The size of the output of images of some size, `(height, width)`."""
        height, width = (
            (length + sum(sides) - size) // stride + 1
            for length, size, stride, sides in zip(
                image, kernel_size, self.strides, self.padding, strict=True
            )
        )
        return height, width

    def reads_pixels_alone(self, kernel_size: tuple[int, int]) -> bool:
        """Whether every output depends on one pixel: a linear layer over the channels."""
        return kernel_size == (1, 1) and self.padding == ((0, 0), (0, 0))


def product(
    x: Float[Array, "batch height width in"],
    kernel: Float[Array, "down across in out"],
    geometry: Geometry,
) -> Float[Array, "batch new_height new_width out"]:
    """`y[b, p, q, o] = sum_ijc kernel[i, j, c, o] x[b, p s + i - low, q s + j - low, c]`."""
    return _convolution(x, kernel, geometry.strides, geometry.padding)


def input_gradient(
    dy: Float[Array, "batch new_height new_width out"],
    kernel: Float[Array, "down across in out"],
    image: tuple[int, int],
    geometry: Geometry,
) -> Float[Array, "batch height width in"]:
    """The gradient of x, whose images are of the size `image`, from that of y."""
    if jax.default_backend() == "cpu":
        return _input_gradient_by_residues(dy, kernel, image, geometry)
    shape = (dy.shape[0], *image, kernel.shape[2])
    (dx,) = jax.linear_transpose(lambda x: product(x, kernel, geometry), _alike(dy, shape))(dy)
    return dx


def _input_gradient_by_residues(
    dy: Array, kernel: Array, image: tuple[int, int], geometry: Geometry
) -> Array:
    """The gradient of x by a convolution of stride 1 for each residue of a pixel by the strides.

    Each has the positions of the kernel alone that reach such pixels. Dilated, dy would be
    multiplied by all of them and be mostly zeros: at stride 2, four times the arithmetic.
    """
    missing = [max(0, s - n) for s, n in zip(geometry.strides, kernel.shape[:2], strict=True)]
    kernel = jnp.pad(kernel, ((0, missing[0]), (0, missing[1]), (0, 0), (0, 0)))

    def of_residues(down: _Residue, across: _Residue) -> Array:
        seen = kernel[down.positions, across.positions]
        back = seen[::-1, ::-1].transpose(0, 1, 3, 2)
        return _convolution(dy, back, padding=(down.padding, across.padding))

    heights, widths = (_residues(dy, kernel, image, geometry, axis) for axis in (0, 1))
    rows = [jnp.stack([of_residues(down, across) for across in widths], 3) for down in heights]
    pixels = jnp.stack(rows, 2)  # [batch, height, down, width, across, in]
    batch, height, down, width, across, n_in = pixels.shape
    return pixels.reshape(batch, height * down, width * across, n_in)[:, : image[0], : image[1]]


@dataclasses.dataclass(frozen=True)
class _Residue:
    """The pixels of one residue by the stride along an axis: what of a kernel reaches them.

    Attributes:
      positions: those of the kernel.
      padding: of dy, for as many pixels as there are of the first residue.
    """

    positions: slice
    padding: tuple[int, int]


def _residues(
    dy: Array, kernel: Array, image: tuple[int, int], geometry: Geometry, axis: int
) -> list[_Residue]:
    """Pixel `stride a + c` meets output o at position `stride a + c + low - stride o`."""
    stride, (low, _) = geometry.strides[axis], geometry.padding[axis]
    n_pixels, n_outputs = -(-image[axis] // stride), dy.shape[1 + axis]
    found = []
    for residue in range(stride):
        shift, first = divmod(residue + low, stride)
        n_positions = len(range(first, kernel.shape[axis], stride))
        padding = (n_positions - 1 - shift, n_pixels + shift - n_outputs)
        found.append(_Residue(slice(first, None, stride), padding))
    return found


def kernel_gradient(
    x: Float[Array, "batch height width in"],
    dy: Float[Array, "batch new_height new_width out"],
    kernel_size: tuple[int, int],
    geometry: Geometry,
) -> Float[Array, "down across in out"]:
    """The gradient of the kernel from x and that of y, by XLA's convolution or by position."""
    if jax.default_backend() == "cpu":
        image = (x.shape[1], x.shape[2])
        if geometry.strides == (1, 1) and x.shape[3] >= _BY_POSITION_ON_CPU:
            return by_position(
                lambda seen: dense.kernel_gradient(x, seen, -1), dy, kernel_size, image, geometry
            )

        def sides(axis: int) -> tuple[int, int]:
            low = geometry.padding[axis][0]
            reach = (dy.shape[1 + axis] - 1) * geometry.strides[axis]
            return low, kernel_size[axis] + reach - image[axis] - low

        channels_first, pixels_first = x.transpose(3, 1, 2, 0), dy.transpose(1, 2, 0, 3)
        padding = (sides(0), sides(1))
        dw = _convolution(
            channels_first, pixels_first, padding=padding, rhs_dilation=geometry.strides
        )
        return dw.transpose(1, 2, 0, 3)
    shape = (*kernel_size, x.shape[3], dy.shape[3])
    (dw,) = jax.linear_transpose(lambda w: product(x, w, geometry), _alike(dy, shape))(dy)
    return dw


def _convolution(
    x: Array,
    kernel: Array,
    strides: tuple[int, int] = (1, 1),
    padding: Padding = ((0, 0), (0, 0)),
    rhs_dilation: tuple[int, int] = (1, 1),
) -> Array:
    """XLA's convolution; pixels that negative padding drops are cut off before it.

    XLA for CPUs (jaxlib 0.12.0) does not drop them everywhere, and may crash.
    """
    sides = []
    for axis, (low, high) in zip((1, 2), padding, strict=True):
        length = x.shape[axis]
        begin = min(length, max(0, -low))
        end = max(begin, length - max(0, -high))
        zeros = length + low + high - (end - begin)
        before = min(zeros, max(0, low))
        sides.append((before, zeros - before))
        if end - begin < length:
            x = jax.lax.slice_in_dim(x, begin, end, axis=axis)
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        strides,
        sides,
        rhs_dilation=rhs_dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


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
