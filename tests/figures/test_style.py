"""Colours are told apart without hue, and blocks stand in the order of their families."""

import itertools

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_rgb

from sparsemlp.figures import style


def lightness(color) -> float:
    """CIE L* of a colour."""
    rgb = np.asarray(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    y = float(linear @ (0.2126, 0.7152, 0.0722))
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


def test_backward_passes_differ_in_dash_and_marker_as_well():
    looks = [*style.BACKWARDS.values(), style.DENSE_MODEL]
    for one, other in itertools.combinations(looks, 2):
        assert one.color != other.color
        assert one.dash != other.dash
        assert one.marker != other.marker


def test_numbers_have_three_digits_and_no_exponent():
    found = [style.three_digits(value) for value in (1734.7, 100.4, 99.94, 12.345, 0.5)]
    assert found == ["1735", "100", "99.9", "12.3", "0.5"]


def test_shades_get_lighter_and_stay_visible_on_white():
    for n_shades in (1, 2, 7):
        found = [lightness(color) for color in style.shades(n_shades)]
        assert found == sorted(found)
        assert len(set(found)) == n_shades
        assert found[-1] < 88


def test_the_map_of_heat_maps_is_monotone_in_lightness():
    colors = mpl.colormaps[style.SEQUENCE](np.linspace(0, 1, 64))
    assert (np.diff([lightness(color) for color in colors]) > 0).all()


def test_blocks_are_sorted_by_family_and_size():
    mixed = {"64x1", "1x2", "16x4", "2x2", "1x1", "1x16", "16x16", "2x1"}
    assert style.sort_blocks(mixed) == [
        *("1x1", "2x2", "16x16"),
        *("1x2", "1x16"),
        *("2x1", "64x1"),
        "16x4",
    ]


def test_the_look_ends_with_its_block():
    before = mpl.rcParams["axes.grid"]
    with style.look():
        assert mpl.rcParams["axes.grid"]
    assert mpl.rcParams["axes.grid"] == before


def test_percent_ticks_have_no_more_digits_than_they_need():
    assert [style.as_percent(value) for value in (0.001, 0.5, 0.755)] == ["0.1", "50", "75.5"]


def test_backward_passes_stand_in_one_order():
    assert style.order_backwards({"straight_through", "masked"}) == ["masked", "straight_through"]
    assert style.name_backward("straight_through") == "straight-through"
