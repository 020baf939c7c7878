"""From an encoded image to the pixels that a model sees.

Any format and colour mode that Pillow reads becomes RGB: grey values are repeated, CMYK and
palettes are converted, transparency is dropped, 16 bits become 8. An EXIF orientation is ignored,
as torchvision and TensorFlow ignore it, so that accuracies compare with published ones.

Resampling is bicubic with antialiasing, for training and validation, as in the training of DeiT
and ResMLP.

JPEG can be decoded at 1/2, 1/4 or 1/8 of its size in much less time. That is done as long as the
part that is shown keeps twice as many pixels as the result has, each way: pixels then change by
less than they would with bilinear or Lanczos resampling instead of bicubic.
"""

import io
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from sparsemlp.data.imagenet.crops import Box, centre_crop, random_resized_crop

_SMALLEST_SCALE = 8
_KEPT_PIXELS = 2


def decode_training(
    data: bytes, image_size: int, numbers: Sequence[float]
) -> UInt8[np.ndarray, "size size 3"]:
    """Decodes a random resized crop, mirrored half of the time.

    Args:
      data: The encoded image.
      image_size: Height and width of the result, in pixels.
      numbers: As for `random_resized_crop`.

    Returns:
      The pixels, uint8 [image_size, image_size, 3].

    Raises:
      Exception: The image cannot be decoded; the class depends on the format.
    """
    with Image.open(io.BytesIO(data)) as image:
        box, flip = random_resized_crop(*image.size, numbers)
        pixels = _resized(image, box, image_size)
    return np.asarray(pixels.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else pixels)


def decode_validation(data: bytes, image_size: int) -> UInt8[np.ndarray, "size size 3"]:
    """Decodes the centred square, as `centre_crop` says.

    Args:
      data: The encoded image.
      image_size: Height and width of the result, in pixels.

    Returns:
      The pixels, uint8 [image_size, image_size, 3].

    Raises:
      Exception: The image cannot be decoded; the class depends on the format.
    """
    with Image.open(io.BytesIO(data)) as image:
        box = centre_crop(*image.size)
        return np.asarray(_resized(image, box, image_size))


def _resized(image: Image.Image, box: Box, image_size: int) -> Image.Image:
    """A part of a freshly opened image, decoded no finer than needed, resized to a square."""
    width, height = image.size
    left, upper, right, lower = box
    scale = _SMALLEST_SCALE
    while scale > 1 and min(right - left, lower - upper) < scale * _KEPT_PIXELS * image_size:
        scale //= 2
    x = y = 1.0
    # Another format has no draft. The size of one is rounded up, its pixels are an exact fraction.
    if scale > 1 and (found := image.draft(None, (width // scale, height // scale))) is not None:
        _, (*_, own_width, own_height) = found
        x, y = own_width / width, own_height / height
    return _as_rgb(image).resize(
        (image_size, image_size),
        Image.Resampling.BICUBIC,
        (left * x, upper * y, right * x, lower * y),
    )


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")
