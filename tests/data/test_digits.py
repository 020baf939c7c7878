"""The digits are a drop-in for CIFAR-10: same shape, fixed stratified split."""

import numpy as np

from sparsemlp.data.digits import load_digits


def test_digits_have_the_shape_of_cifar10():
    digits = load_digits()
    assert digits.train_images.shape == (1437, 32, 32, 3)
    assert digits.test_images.shape == (360, 32, 32, 3)
    assert digits.train_images.dtype == digits.test_images.dtype == np.uint8
    assert digits.train_labels.dtype == digits.test_labels.dtype == np.int32
    assert (digits.name, digits.source, digits.n_classes) == (
        "digits",
        "digits (scikit-learn)",
        10,
    )
    assert digits.notice is None


def test_the_split_is_stratified_and_always_the_same():
    first, second = load_digits(), load_digits()
    np.testing.assert_array_equal(first.test_images, second.test_images)
    np.testing.assert_array_equal(first.train_labels, second.train_labels)
    share_of_train = np.bincount(first.train_labels) / 1437
    share_of_test = np.bincount(first.test_labels) / 360
    assert np.abs(share_of_train - share_of_test).max() < 1 / 360


def test_pixels_are_grey_and_use_the_full_range():
    images = load_digits().train_images
    assert (images == images[..., :1]).all()
    assert images.min() == 0
    assert images.max() == 255


def test_normalised_training_images_have_mean_zero_and_std_one():
    digits = load_digits()
    normalised = (digits.train_images / 255 - digits.mean) / digits.std
    np.testing.assert_allclose(normalised.mean(axis=(0, 1, 2)), 0, atol=1e-9)
    np.testing.assert_allclose(normalised.std(axis=(0, 1, 2)), 1, atol=1e-9)


def test_an_image_and_its_label_stay_together():
    digits = load_digits()
    flat_train = digits.train_images[:, ::4, ::4, 0].reshape(1437, -1).astype(float)
    flat_test = digits.test_images[:, ::4, ::4, 0].reshape(360, -1).astype(float)
    distances = np.square(flat_test[:, None] - flat_train).sum(axis=-1)
    nearest = digits.train_labels[distances.argmin(axis=1)]
    assert (nearest == digits.test_labels).mean() > 0.95
