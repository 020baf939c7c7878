"""The one form in which every data set reaches a program."""

import functools
import zlib
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int32, UInt8

from sparsemlp.errors import InputError

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

    @property
    def n_train(self) -> int:
        """The number of training images."""
        return len(self.train_labels)

    @property
    def n_test(self) -> int:
        """The number of test images."""
        return len(self.test_labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        height, width, channels = self.train_images.shape[1:]
        return height, width, channels

    @functools.cached_property
    def digest(self) -> str:
        """A checksum of the training and test data, to know them again when a run is resumed."""
        digest = 0
        for array in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            digest = zlib.crc32(np.ascontiguousarray(array), digest)
        return f"{digest:08x}"


Held = tuple[UInt8[np.ndarray, "n height width channels"], Int32[np.ndarray, " n"]]


def hold_out(dataset: ImageDataset, share: float) -> tuple[ImageDataset, Held | None]:
    """Takes training images out of a data set, evenly spaced in each class, to validate on them.

    Args:
      dataset: The data set.
      share: Share of the training images to take, in [0, 1); 0 takes none.

    Returns:
      The data set without them, its statistics as they were, and their images and labels.

    Raises:
      InputError: The share is out of its range, or takes no image or all of them.
    """
    if share == 0:
        return dataset, None
    by_class = np.argsort(dataset.train_labels, kind="stable")
    taken = np.zeros(len(by_class), bool)
    taken[by_class[evenly_spaced(len(by_class), share)]] = True
    left = replace(
        dataset,
        train_images=dataset.train_images[~taken],
        train_labels=dataset.train_labels[~taken],
    )
    return left, (dataset.train_images[taken], dataset.train_labels[taken])


def evenly_spaced(n_images: int, share: float) -> Bool[np.ndarray, " n_images"]:
    """Which training images are held out, a share of them.

    Raises:
      InputError: The share is out of its range, or takes no image or all of them.
    """
    n_taken = round(n_images * share) if 0 < share < 1 else 0
    if not 0 < n_taken < n_images:
        raise InputError(
            f"--hold-out={share}: that share of the {n_images} training images cannot be held "
            "out: choose one in [0, 1) that takes some and leaves some"
        )
    taken = np.zeros(n_images, bool)
    taken[np.arange(n_taken) * n_images // n_taken] = True
    return taken


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
