"""Convolutions in NumPy float64 as products with unfolded images: the definition in the tests."""

import math
from collections.abc import Sequence

import numpy as np

Sides = Sequence[Sequence[int]]


def windows(shape: Sequence[int], size: Sequence[int], strides: Sequence[int], sides: Sides):
    """Index of every number of `[batch, height, width, channels]` in rows of unfolded windows.

    Returns `[batch * new_height * new_width, down * across * channels]`, -1 in the padding, and
    the shape `(batch, new_height, new_width)`.
    """
    batch, height, width, _ = shape
    index = np.arange(math.prod(shape)).reshape(shape)
    index = np.pad(index, ((0, 0), *sides, (0, 0)), constant_values=-1)
    down = (height + sum(sides[0]) - size[0]) // strides[0] + 1
    across = (width + sum(sides[1]) - size[1]) // strides[1] + 1
    rows = [
        index[b, p * strides[0] :, q * strides[1] :][: size[0], : size[1]].reshape(-1)
        for b in range(batch)
        for p in range(down)
        for q in range(across)
    ]
    return np.stack(rows), (batch, down, across)


def unfold(x, index) -> np.ndarray:
    flat = np.append(np.asarray(x, np.float64).reshape(-1), 0)
    return flat[index]


def fold(rows, index, shape) -> np.ndarray:
    """The transpose of `unfold`: what windows share is summed."""
    flat = np.zeros(math.prod(shape) + 1)
    np.add.at(flat, index, rows)
    return flat[:-1].reshape(shape)
