"""The one form in which every data set reaches a program."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, UInt8

_IMAGES_PER_SUM = 1024


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """A labelled image set, decoded and in memory.

    Attributes:
        name: `"cifar10"`, `"digits"`, or the stem of an `.npz` file.
        source: Where the pixels come from, to be printed beside a result: `"cifar10"`,
            `"cifar10 (JPEG transcode)"`, `"digits (scikit-learn)"`, or the `.npz` file's name.
        train_images: uint8 [train, height, width, channels].
        train_labels: int32 [train], in [0, n_classes).
        test_images: uint8 [test, height, width, channels].
        test_labels: int32 [test], in [0, n_classes).
        n_classes: The number of classes.
        mean: Per channel, of pixels scaled to 0..1.
        std: Per channel, of pixels scaled to 0..1, never 0.
        notice: A single line that a program must show the user prominently, or None.
    """

    name: str
    source: str
    train_images: UInt8[np.ndarray, "train height width channels"]
    train_labels: Int32[np.ndarray, " train"]
    test_images: UInt8[np.ndarray, "test height width channels"]
    test_labels: Int32[np.ndarray, " test"]
    n_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    notice: str | None = None


def channel_statistics(
    images: UInt8[np.ndarray, "n height width channels"],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel, in exact integer sums.

    Args:
        images: uint8 [n, height, width, channels], not empty.

    Returns:
        The means and the population standard deviations of the pixels scaled to 0..1. A constant
        channel gets the standard deviation 1, so that dividing by it is always defined.
    """
    n_pixels = images.size // images.shape[-1]
    total = np.zeros(images.shape[-1], np.int64)
    total_of_squares = np.zeros(images.shape[-1], np.int64)
    for start in range(0, len(images), _IMAGES_PER_SUM):
        pixels = images[start : start + _IMAGES_PER_SUM].astype(np.uint32)
        total += pixels.sum(axis=0).sum(axis=(0, 1), dtype=np.int64)
        total_of_squares += np.square(pixels).sum(axis=0).sum(axis=(0, 1), dtype=np.int64)
    mean = tuple(int(plain) / n_pixels / 255 for plain in total)
    # In Python integers n * sum(x^2) - sum(x)^2 is exact, and zero for a constant channel.
    std = tuple(
        (n_pixels * int(squares) - int(plain) ** 2) ** 0.5 / n_pixels / 255 or 1.0
        for plain, squares in zip(total, total_of_squares, strict=True)
    )
    return mean, std
