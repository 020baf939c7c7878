"""The numbers of the input pipeline depend on what they are for, and are spread as they must be."""

import numpy as np
import pytest

from sparsemlp.data.imagenet.draws import image_order, uniform_numbers


def test_numbers_are_a_function_of_every_argument():
    reference = uniform_numbers(1, "crop", 2, 3, 8)
    np.testing.assert_array_equal(uniform_numbers(1, "crop", 2, 3, 8), reference)
    others = [
        uniform_numbers(2, "crop", 2, 3, 8),
        uniform_numbers(1, "replacement", 2, 3, 8),
        uniform_numbers(1, "crop", 3, 3, 8),
        uniform_numbers(1, "crop", 2, 4, 8),
        uniform_numbers(1, "crop", 3, 2, 8),
    ]
    for other in others:
        assert not np.intersect1d(other, reference).size


def test_numbers_are_uniform_over_the_images():
    n_images, n_numbers = 2000, 4
    drawn = np.array([uniform_numbers(0, "crop", 0, i, n_numbers) for i in range(n_images)])
    assert drawn.min() >= 0
    assert drawn.max() < 1
    # The mean of n uniform numbers deviates by 1 / sqrt(12 n), correlations by 1 / sqrt(n).
    assert np.abs(drawn.mean(axis=0) - 0.5).max() < 5 / (12 * n_images) ** 0.5
    correlations = np.corrcoef(drawn.T) - np.eye(n_numbers)
    assert np.abs(correlations).max() < 5 / n_images**0.5
    successive = np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]
    assert abs(successive) < 5 / n_images**0.5


@pytest.mark.parametrize("n_images", [1, 2, 1000])
def test_an_order_holds_every_image_once(n_images: int):
    order = image_order(0, 0, n_images)
    np.testing.assert_array_equal(np.sort(order), np.arange(n_images))
    np.testing.assert_array_equal(order, image_order(0, 0, n_images))


def test_orders_differ_between_epochs_and_seeds():
    # Two random orders agree in one place on average; in more than 10 with probability 1e-8.
    for other in (image_order(0, 1, 1000), image_order(1, 0, 1000)):
        assert np.count_nonzero(other == image_order(0, 0, 1000)) <= 10


def test_all_orders_are_equally_likely():
    seen = [tuple(image_order(0, epoch, 3).tolist()) for epoch in range(1200)]
    counts = np.array([seen.count(order) for order in sorted(set(seen))])
    assert len(counts) == 6
    assert np.abs(counts - 200).max() < 5 * (1200 * 1 / 6 * 5 / 6) ** 0.5


def test_a_seed_means_the_same_in_every_version_and_on_every_machine():
    """A change here changes what every seed trains on: say so in the release notes."""
    assert image_order(7, 3, 8).tolist() == GOLDEN_ORDER
    np.testing.assert_array_equal(uniform_numbers(7, "crop", 3, 8, 2), GOLDEN_NUMBERS)


GOLDEN_ORDER = [2, 0, 7, 3, 5, 4, 1, 6]
GOLDEN_NUMBERS = [0.8348290060977569, 0.8276879206046046]


def test_all_bits_of_a_seed_count():
    assert image_order(1, 0, 100).tolist() != image_order(1 + 2**32, 0, 100).tolist()
