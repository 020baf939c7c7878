"""Strides and padding become numbers of pixels, or are refused in words."""

import numpy as np
import pytest

from sparsemlp.errors import InputError
from sparsemlp.windows import window_geometry

IMAGE, SIZE = (5, 8), (3, 2)


@pytest.mark.parametrize(
    ("padding", "strides", "sides"),
    [
        # Outputs are 5 and 8 at stride 1; 3 and 4 at stride 2, whose windows reach 7 and 8 pixels.
        ("SAME", (1, 1), ((1, 1), (0, 1))),
        ("SAME", (2, 2), ((1, 1), (0, 0))),
        ("VALID", (1, 1), ((0, 0), (0, 0))),
        (2, (1, 3), ((2, 2), (2, 2))),
        (np.int64(2), (1, 3), ((2, 2), (2, 2))),
        (((0, 1), [2, 0]), (1, 1), ((0, 1), (2, 0))),
        ((1, 2), (1, 1), ((1, 1), (2, 2))),
        ((1, (0, 2)), (1, 1), ((1, 1), (0, 2))),
    ],
)
def test_padding_is_pixels_on_each_side(unchecked, padding, strides, sides):
    geometry = window_geometry(IMAGE, SIZE, strides, padding)
    assert geometry.padding == sides
    assert geometry.strides == strides
    hash(geometry)


@pytest.mark.parametrize("size", [(1, 1), (2, 1)])
def test_a_window_of_one_pixel_without_padding_is_a_linear_layer(size):
    assert window_geometry(IMAGE, size, (2, 2), "VALID").reads_pixels_alone(size) == (
        size == (1, 1)
    )
    assert not window_geometry(IMAGE, size, (2, 2), 1).reads_pixels_alone(size)


@pytest.mark.parametrize(
    ("strides", "padding", "message"),
    [
        ((1, 1), "FULL", "padding 'FULL' is unknown: SAME, VALID, or numbers of pixels"),
        ((1, 1), -1, "padding -1 is negative: choose pixels >= 0"),
        ((1, 1), ((0, 1), (0, -1)), r"padding \(\(0, 1\), \(0, -1\)\) is negative"),
        ((1, 1), (1, 1, 1), r"padding \(1, 1, 1\) is not understood: SAME"),
        ((1, 1), None, "padding None is not understood"),
        (2, 0, r"strides 2 are not \(down, across\): two positive integers"),
        ((0, 1), 0, r"strides \(0, 1\) are not"),
        ((1, 1, 1), 0, r"strides \(1, 1, 1\) are not"),
        ((1.5, 1), 0, r"strides \(1.5, 1\) are not"),
    ],
)
def test_what_is_no_window_is_refused(unchecked, strides, padding, message):
    with pytest.raises(InputError, match=message):
        window_geometry(IMAGE, SIZE, strides, padding)


def test_an_image_must_hold_a_window():
    with pytest.raises(InputError, match="2x8 pixels is smaller than the kernel 3x2: pad it"):
        window_geometry((2, 8), SIZE, (1, 1), "VALID")
    assert window_geometry((2, 8), SIZE, (1, 1), ((1, 0), (0, 0))).padding == ((1, 0), (0, 0))
