"""Figures are written whole, as a vector and as PNG, the same one the same way."""

import pytest
from matplotlib.figure import Figure
from PIL import Image

from sparsemlp.errors import InputError
from sparsemlp.figures.drawing import Drawing
from sparsemlp.figures.writing import check_picture, render, save, save_as


def picture() -> Figure:
    figure = Figure(figsize=(4, 3))
    figure.subplots().plot([1, 2], [1, 2])
    return figure


def test_a_drawing_becomes_a_vector_and_a_png(tmp_path):
    paths = save(Drawing("a", picture(), "words"), tmp_path, "pdf")
    assert [path.name for path in paths] == ["a.pdf", "a.png"]
    assert paths[0].read_bytes().startswith(b"%PDF")
    with Image.open(paths[1]) as image:
        assert image.size == (800, 600)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pdf", "a.png"]


def test_the_same_figure_is_the_same_file():
    assert render(picture(), "svg") == render(picture(), "svg")


def test_a_single_figure_takes_its_format_from_the_name(tmp_path):
    save_as(picture(), tmp_path / "a.SVG")
    assert b"<svg" in (tmp_path / "a.SVG").read_bytes()
    with pytest.raises(InputError, match=r"end it in \.png"):
        check_picture(tmp_path / "a.txt")
