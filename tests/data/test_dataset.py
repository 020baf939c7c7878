"""Statistics are exact, and importing the data package is cheap."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from sparsemlp.data import ImageDataset
from sparsemlp.data.dataset import channel_statistics


def test_statistics_are_those_of_the_scaled_pixels():
    images = np.random.default_rng(0).integers(0, 256, (1500, 4, 5, 3), dtype=np.uint8)
    mean, std = channel_statistics(images)
    np.testing.assert_allclose(mean, (images / 255).mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std, (images / 255).std(axis=(0, 1, 2)), rtol=1e-12)


@pytest.mark.parametrize("value", [0, 7, 255])
def test_a_constant_channel_can_be_divided_by_its_std(value: int):
    mean, std = channel_statistics(np.full((3, 2, 2, 1), value, np.uint8))
    assert mean == (value / 255,)
    assert std == (1.0,)


def test_a_dataset_cannot_be_changed():
    images, labels = np.zeros((1, 2, 2, 1), np.uint8), np.zeros(1, np.int32)
    dataset = ImageDataset("x", "x", images, labels, images, labels, 1, (0.0,), (1.0,))
    assert dataset.notice is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        dataset.n_classes = 2  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_the_data_package_loads_no_data_library():
    code = (
        "import sys, sparsemlp.data\n"
        "assert not {'tensorflow_datasets', 'sklearn', 'tensorflow'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
