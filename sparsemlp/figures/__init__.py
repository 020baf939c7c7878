"""Figures of a study: the thesis' and some more, in one look."""

from sparsemlp.figures.catalogue import FIGURES, draw_figures
from sparsemlp.figures.drawing import Chosen, Drawing, NothingToDrawError
from sparsemlp.figures.files import render, save

__all__ = [
    "FIGURES",
    "Chosen",
    "Drawing",
    "NothingToDrawError",
    "draw_figures",
    "render",
    "save",
]
