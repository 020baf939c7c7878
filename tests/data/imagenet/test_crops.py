"""Random resized crops cover what they promise; a centre crop is the centre."""

import numpy as np
import pytest

from sparsemlp.data.imagenet.crops import (
    N_NUMBERS,
    RATIO,
    SCALE,
    centre_crop,
    random_resized_crop,
)


def random_numbers(n_images: int) -> list[list[float]]:
    return np.random.default_rng(0).random((n_images, N_NUMBERS)).tolist()


def test_a_crop_lies_inside_and_has_the_stated_area_and_ratio():
    width, height = 500, 375
    for numbers in random_numbers(500):
        (left, upper, right, lower), _ = random_resized_crop(width, height, numbers)
        assert 0 <= left < right <= width
        assert 0 <= upper < lower <= height
        # Each side is rounded to a whole pixel.
        low, high = (
            (right - left - 0.5, right - left + 0.5),
            (lower - upper - 0.5, lower - upper + 0.5),
        )
        assert low[1] * high[1] >= SCALE[0] * width * height
        assert low[0] * high[0] <= SCALE[1] * width * height
        assert low[1] / high[0] >= RATIO[0]
        assert low[0] / high[1] <= RATIO[1]


def test_areas_are_uniform_where_every_crop_fits():
    # In a square every ratio fits up to an area of 3/4: among those, areas are uniform.
    side = 1000
    boxes = [random_resized_crop(side, side, numbers)[0] for numbers in random_numbers(4000)]
    areas = np.array([(right - left) * (lower - upper) for left, upper, right, lower in boxes])
    share = areas / side**2
    share = share[share < 0.75]
    expected, deviation = (0.08 + 0.75) / 2, (0.75 - 0.08) / 12**0.5
    assert abs(share.mean() - expected) < 5 * deviation / len(share) ** 0.5


def test_crops_lie_everywhere_and_half_are_mirrored():
    n_images = 2000
    found = [random_resized_crop(400, 400, numbers) for numbers in random_numbers(n_images)]
    centres = np.array([((box[0] + box[2]) / 2, (box[1] + box[3]) / 2) for box, _ in found])
    assert np.abs(centres.mean(axis=0) - 200).max() < 5 * 400 / (12 * n_images) ** 0.5
    mirrored = sum(flip for _, flip in found)
    assert abs(mirrored - n_images / 2) < 5 * n_images**0.5 / 2


@pytest.mark.parametrize(("width", "height"), [(1000, 10), (10, 1000), (1, 1), (1, 50), (2, 3)])
def test_an_image_of_any_shape_has_a_crop(width: int, height: int):
    for numbers in random_numbers(20):
        (left, upper, right, lower), _ = random_resized_crop(width, height, numbers)
        assert 0 <= left < right <= width
        assert 0 <= upper < lower <= height


def test_a_strip_is_cropped_to_its_centre():
    (left, upper, right, lower), _ = random_resized_crop(900, 9, [0.5] * N_NUMBERS)
    assert (left, upper, right, lower) == (444, 0, 456, 9)


@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (256, 256), (3, 7)])
def test_a_centre_crop_is_the_centred_square_of_seven_eighths(width: int, height: int):
    left, upper, right, lower = centre_crop(width, height)
    assert right - left == pytest.approx(0.875 * min(width, height))
    assert lower - upper == pytest.approx(0.875 * min(width, height))
    assert left + right == pytest.approx(width)
    assert upper + lower == pytest.approx(height)


def test_a_tall_strip_is_cut_to_the_narrowest_ratio():
    assert random_resized_crop(9, 900, [0.5] * N_NUMBERS)[0] == (0, 444, 9, 456)


def test_a_crop_may_reach_the_last_column_and_row():
    almost_one = 1 - 2**-53
    numbers = [0.5] * (N_NUMBERS - 3) + [almost_one, almost_one, 0.9]
    (_, _, right, lower), _ = random_resized_crop(500, 375, numbers)
    assert (right, lower) == (500, 375)
