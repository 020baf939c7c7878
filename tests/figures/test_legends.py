"""Legends fit on the page, in as many columns as their words allow."""

import pytest

from sparsemlp.figures.legends import LINE_HEIGHT, columns_for, height, wrap, wrap_title, wrap_to
from sparsemlp.figures.style import WIDTH


@pytest.mark.parametrize(
    ("longest", "columns"), [(0, 4), (19, 4), (20, 3), (27, 3), (40, 2), (44, 2), (45, 1), (300, 1)]
)
def test_labels_stand_side_by_side_where_they_fit(longest, columns):
    assert columns_for(["a", "b" * longest], most=4) == columns
    assert columns_for([], most=2) == 2


def test_a_label_is_broken_between_its_words():
    label = ", ".join(f"option_{i}=0.{i}" for i in range(20))
    lines = wrap(label).split("\n")
    assert len(lines) == 4
    assert max(map(len, lines)) <= 100
    assert " ".join(lines) == label
    assert len(wrap(label, 2).split("\n")) > 4
    assert wrap_to("a-long-word-alone of two", 5) == "a-long-word-alone\nof\ntwo"


def test_the_height_is_that_of_the_highest_column():
    labels = ["a", "b\nb", "c", "d", "e"]
    assert height(labels) == pytest.approx(6 * LINE_HEIGHT)
    assert height(labels, 2) == pytest.approx(4 * LINE_HEIGHT)
    assert height([], 2) == 0


def test_lines_are_as_long_as_the_figure_is_wide():
    label = " ".join(["word"] * 40)
    whole, half = wrap(label), wrap(label, width=WIDTH / 2)
    assert max(map(len, whole.split("\n"))) > 90
    assert 40 < max(map(len, half.split("\n"))) <= 50
    assert columns_for(["b" * 30], most=4) == 2
    assert columns_for(["b" * 30], most=4, width=WIDTH / 2) == 1


def test_a_long_title_takes_more_lines_and_their_height():
    assert wrap_title("short") == ("short", 0)
    title = " ".join(["word"] * 40)
    whole, more = wrap_title(title)
    assert max(map(len, whole.split("\n"))) <= 11 * WIDTH
    assert more == pytest.approx(0.2 * whole.count("\n"))
    assert wrap_title(title, WIDTH / 2)[1] > more > 0
