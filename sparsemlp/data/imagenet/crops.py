"""Which part of an image is shown, as boxes of real-valued pixel coordinates.

References:
  Szegedy et al., Going Deeper with Convolutions (random resized crop),
  https://arxiv.org/abs/1409.4842

  torchvision.transforms.RandomResizedCrop, whose number of tries and fallback everybody uses
"""

import math
from collections.abc import Sequence

Box = tuple[float, float, float, float]
"""Left, upper, right and lower border in pixels, as Pillow has them."""

SCALE = (0.08, 1.0)
"""Share of the image's area that a training crop covers."""
RATIO = (3 / 4, 4 / 3)
"""Width over height of a training crop."""
TRIES = 10
N_NUMBERS = 2 * TRIES + 3
"""Uniform numbers that a training crop and flip need."""
RESIZE_OVER_CROP = 256 / 224
"""Short side to which a validation image is resized, over the side of the crop."""


def random_resized_crop(width: int, height: int, numbers: Sequence[float]) -> tuple[Box, bool]:
    """A part of random area and shape at a random place, and whether it is mirrored.

    The area is uniform in `SCALE` of the image's, the logarithm of the ratio uniform in that of
    `RATIO`. What does not fit is drawn again, `TRIES` times; then it is the largest centred part
    whose ratio lies in `RATIO`.

    Args:
      width: Width of the image, in pixels.
      height: Height of the image, in pixels.
      numbers: `N_NUMBERS` uniform numbers in [0, 1).

    Returns:
      The box, of whole pixels, and whether to mirror it, with probability 1/2.
    """
    *tries, x, y, flip = (float(number) for number in numbers)
    low, high = (math.log(ratio) for ratio in RATIO)
    for area_number, ratio_number in zip(tries[::2], tries[1::2], strict=True):
        area = width * height * (SCALE[0] + (SCALE[1] - SCALE[0]) * area_number)
        ratio = math.exp(low + (high - low) * ratio_number)
        crop_width, crop_height = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left = math.floor(x * (width - crop_width + 1))
            upper = math.floor(y * (height - crop_height + 1))
            break
    else:
        crop_width = min(width, max(1, round(height * RATIO[1])))
        crop_height = min(height, max(1, round(width / RATIO[0])))
        left, upper = (width - crop_width) // 2, (height - crop_height) // 2
    right, lower = left + crop_width, upper + crop_height
    return (float(left), float(upper), float(right), float(lower)), flip < 0.5


def centre_crop(width: int, height: int) -> Box:
    """The centred square that remains when the short side is resized to 256 and 224 are kept.

    The two steps of resizing and cropping are one here, so nothing is rounded to whole pixels.

    Args:
      width: Width of the image, in pixels.
      height: Height of the image, in pixels.
    """
    side = min(width, height) / RESIZE_OVER_CROP
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side
