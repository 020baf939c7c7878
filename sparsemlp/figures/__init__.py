"""Figures of a study: the thesis' and some more, in one look."""

from sparsemlp.figures.catalogue import FIGURES, draw_figures
from sparsemlp.figures.choice import choose
from sparsemlp.figures.drawing import Chosen, Drawing, NothingToDrawError
from sparsemlp.figures.writing import check_picture, render, save, save_as

__all__ = [
    "FIGURES",
    "Chosen",
    "Drawing",
    "NothingToDrawError",
    "check_picture",
    "choose",
    "draw_figures",
    "render",
    "save",
    "save_as",
]
