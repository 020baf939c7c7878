"""Scikit-learn's embedded handwritten digits: a real data set that needs no download."""

from typing import Any

import numpy as np
from jaxtyping import Float64, UInt8
from PIL import Image

from sparsemlp.data.dataset import ImageDataset, channel_statistics

_IMAGE_SIZE = 32
_LARGEST_VALUE = 16
_N_TEST = 360
_SPLIT_SEED = 0


def load_digits() -> ImageDataset:
    """Loads the 1797 digits of scikit-learn in the shape of CIFAR-10.

    The 8x8 images of 17 grey levels are scaled to 0..255, enlarged to 32x32 by bilinear
    interpolation, and repeated over three channels. The split is stratified and always the same.

    Returns:
      1437 training and 360 test images, uint8 [n, 32, 32, 3], in 10 classes.
    """
    from sklearn import datasets, model_selection

    digits: Any = datasets.load_digits()
    images = np.stack([_enlarge(image) for image in digits.images])
    labels = digits.target.astype(np.int32)
    train, test = map(
        np.asarray,
        model_selection.train_test_split(
            np.arange(len(labels)), test_size=_N_TEST, stratify=labels, random_state=_SPLIT_SEED
        ),
    )
    mean, std = channel_statistics(images[train])
    return ImageDataset(
        name="digits",
        source="digits (scikit-learn)",
        train_images=images[train],
        train_labels=labels[train],
        test_images=images[test],
        test_labels=labels[test],
        n_classes=10,
        mean=mean,
        std=std,
    )


def _enlarge(digit: Float64[np.ndarray, "8 8"]) -> UInt8[np.ndarray, "32 32 3"]:
    grey = Image.fromarray(np.round(digit * (255 / _LARGEST_VALUE)).astype(np.uint8))
    enlarged = grey.resize((_IMAGE_SIZE, _IMAGE_SIZE), Image.Resampling.BILINEAR)
    return np.repeat(np.asarray(enlarged)[..., None], 3, axis=-1)
