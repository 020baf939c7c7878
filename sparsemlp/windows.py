"""Where the windows of a convolution lie: strides, and pixels added at the borders."""

import numbers
from collections.abc import Sequence

import jax

from pallas_kernels.dense_convolution import Geometry
from sparsemlp.errors import InputError

Padding = str | int | Sequence[int | tuple[int, int]]
"""As Flax takes it: the name SAME or VALID, pixels on every side, or of each axis, down and across,
pixels on both sides or those before and after: `((above, below), (left, right))`."""


def window_geometry(
    image: tuple[int, int], size: tuple[int, int], strides: Sequence[int], padding: Padding
) -> Geometry:
    """Strides and padding as numbers of pixels.

    Args:
      image: height and width of the images.
      size: height and width of the kernel.
      strides: pixels from one output to the next, `(down, across)`.
      padding: `SAME` (outputs are `ceil(size / stride)`), `VALID` (none), pixels on every side, or
        `((above, below), (left, right))`.

    Raises:
      InputError: strides or padding that are none of these, or an image that is smaller than the
        kernel with them.
    """
    pair = isinstance(strides, Sequence) and len(strides) == 2
    if not pair or not all(isinstance(n, numbers.Integral) and n > 0 for n in strides):
        raise InputError(f"strides {strides!r} are not (down, across): two positive integers")
    down, across = _sides(image, size, strides, padding)
    if min(*down, *across) < 0:
        raise InputError(f"padding {padding} is negative: choose pixels >= 0")
    for length, window, side in zip(image, size, (down, across), strict=True):
        if length + sum(side) < window:
            raise InputError(
                f"an image of {image[0]}x{image[1]} pixels is smaller than the kernel "
                f"{size[0]}x{size[1]}: pad it, or give larger images"
            )
    return Geometry((int(strides[0]), int(strides[1])), (down, across))


def _sides(
    image: tuple[int, int], size: tuple[int, int], strides: Sequence[int], padding: Padding
) -> tuple[tuple[int, int], tuple[int, int]]:
    if isinstance(padding, str):
        name = padding.upper()
        if name not in ("SAME", "VALID"):
            raise InputError(f"padding {padding!r} is unknown: SAME, VALID, or numbers of pixels")
        down, across = jax.lax.padtype_to_pads(image, size, strides, name)
    elif isinstance(padding, int | numbers.Integral):
        down = across = (int(padding), int(padding))
    else:
        try:
            down, across = (
                (side, side) if isinstance(side, int | numbers.Integral) else side
                for side in padding
            )
            (above, below), (left, right) = down, across
        except (TypeError, ValueError) as error:
            raise InputError(
                f"padding {padding!r} is not understood: SAME, VALID, pixels on every side, or "
                "((above, below), (left, right))"
            ) from error
        down, across = (above, below), (left, right)
    return (int(down[0]), int(down[1])), (int(across[0]), int(across[1]))
