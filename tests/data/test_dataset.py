"""Statistics are exact, and importing the data package is cheap."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from sparsemlp.data import ImageDataset, hold_out
from sparsemlp.data.dataset import channel_statistics
from sparsemlp.errors import InputError


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


def tiny_dataset(n_images: int) -> ImageDataset:
    images = np.arange(n_images, dtype=np.uint8)[:, None, None, None]
    labels = np.arange(n_images, dtype=np.int32)
    return ImageDataset("x", "x", images, labels, images, labels, n_images, (0.0,), (1.0,))


@pytest.mark.parametrize(
    ("n_images", "share", "n_taken"), [(44, 0.25, 11), (10, 0.5, 5), (7, 0.1, 1)]
)
def test_held_out_images_are_taken_evenly_and_none_is_lost(n_images, share, n_taken):
    left, held = hold_out(tiny_dataset(n_images), share)
    assert held is not None
    images, labels = held
    assert len(labels) == n_taken
    assert np.ptp(np.diff(labels)) <= 1 if n_taken > 1 else True
    assert sorted([*labels, *left.train_labels]) == list(range(n_images))
    np.testing.assert_array_equal(images[:, 0, 0, 0], labels)
    np.testing.assert_array_equal(left.train_images[:, 0, 0, 0], left.train_labels)


@pytest.mark.parametrize("order", ["interleaved", "sorted"])
def test_every_class_is_held_out_alike(order):
    labels = np.arange(200, dtype=np.int32) % 10
    dataset = tiny_dataset(200)
    labels = np.sort(labels) if order == "sorted" else labels
    _, held = hold_out(dataclasses.replace(dataset, train_labels=labels), 0.1)
    assert held is not None
    assert np.bincount(held[1]).tolist() == [2] * 10


def test_nothing_is_held_out_unless_asked_and_never_all_or_none():
    dataset = tiny_dataset(8)
    assert hold_out(dataset, 0.0) == (dataset, None)
    for share in (0.01, 0.99, 1.0, -0.5):
        with pytest.raises(
            InputError, match=f"--hold-out={share}: that share of the 8 training images"
        ):
            hold_out(dataset, share)


@pytest.mark.parametrize("name", ["train_images", "train_labels", "test_images", "test_labels"])
def test_the_digest_knows_every_label_and_pixel(name):
    original = tiny_dataset(8)
    changed = getattr(original, name).copy()
    changed.reshape(-1)[-1] ^= 1
    assert dataclasses.replace(original, **{name: changed}).digest != original.digest
    assert tiny_dataset(8).digest == original.digest


def test_the_digest_is_of_the_values_however_they_lie_in_memory():
    """Images that were transposed before `numpy.savez`, as `[h, w, c, n]` ones are, lie so."""
    images = np.random.default_rng(0).integers(0, 256, (8, 4, 5, 3), dtype=np.uint8)
    original = dataclasses.replace(tiny_dataset(8), train_images=images, test_images=images)
    transposed = np.asfortranarray(images)
    assert dataclasses.replace(original, train_images=transposed).digest == original.digest
