"""Images as rows of pixels, so that a position of a kernel reads rows that follow each other.

An image with its padding is laid out as a grid of as many pixels as windows begin at or reach
beyond. Then the pixel that a position of the kernel meets lies the same number of rows behind that
at which its window begins, whichever window it is: a kernel for rows becomes one for convolutions
by a shift. Where strides leave pixels out, those of each residue by the strides, a phase, are such
a grid of their own. What is computed at places of the grid that no window begins at is dropped.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.dense_convolution import Geometry
from pallas_kernels.triton.launch import quotient_and_rest

LARGEST_TILE = 256
"""Rows of a tile, at most: so many more than an image needs may be read."""


@dataclasses.dataclass(frozen=True)
class Pixels:
    """The images of a convolution as rows.

    Attributes:
      n_images: images.
      image: height and width of each.
      kernel_size: `(down, across)`.
      geometry: how the kernel walks over them.
    """

    n_images: int
    image: tuple[int, int]
    kernel_size: tuple[int, int]
    geometry: Geometry

    @property
    def outputs(self) -> tuple[int, int]:
        """Height and width of the output."""
        return self.geometry.outputs(self.image, self.kernel_size)

    @property
    def n_outputs(self) -> int:
        """Pixels of all outputs."""
        return self.n_images * math.prod(self.outputs)

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of what an image is laid out as, in each phase."""
        down, across = (
            n + (size - 1) // stride
            for n, size, stride in zip(
                self.outputs, self.kernel_size, self.geometry.strides, strict=True
            )
        )
        return down, across

    @property
    def n_rows(self) -> int:
        """Rows of all images, in each phase."""
        return self.n_images * math.prod(self.grid)

    @property
    def n_phases(self) -> int:
        """Residues of pixels by the strides."""
        return math.prod(self.geometry.strides)

    @property
    def reach(self) -> int:
        """The largest shift of any position."""
        (down, across), strides = self.kernel_size, self.geometry.strides
        return (down - 1) // strides[0] * self.grid[1] + (across - 1) // strides[1]

    @property
    def padded_rows(self) -> int:
        """Rows of a phase, as many behind them as a shift reaches, and a tile.

        All kernels find them alike, so that the two of the backward pass share those of dy.
        """
        return self.n_rows + self.reach + LARGEST_TILE

    def place(self, position: Array) -> tuple[Array, Array]:
        """The phase of the pixels that a position of the kernel meets, and its shift in rows."""
        row, column = quotient_and_rest(position, self.kernel_size[1])
        strides, (_, width) = self.geometry.strides, self.grid
        (below, row), (behind, column) = (
            quotient_and_rest(n, stride) for n, stride in zip((row, column), strides, strict=True)
        )
        return row * strides[1] + column, below * width + behind

    def of_images(
        self, x: Float[Array, "images height width features"]
    ) -> Float[Array, "rows features"]:
        """Images with their padding as rows, phase after phase, each of `padded_rows`."""
        strides, (height, width) = self.geometry.strides, self.grid
        sides = zip(self.grid, strides, self.image, self.geometry.padding, strict=True)
        config = [(low, n * stride - length - low) for n, stride, length, (low, _) in sides]
        x = _padded(x, ((0, 0), *config, (0, 0)))
        x = x.reshape(self.n_images, height, strides[0], width, strides[1], -1)
        x = x.transpose(2, 4, 0, 1, 3, 5).reshape(self.n_phases, self.n_rows, -1)
        x = _padded(x, ((0, 0), (0, self.padded_rows - self.n_rows), (0, 0)))
        return x.reshape(-1, x.shape[-1])

    def of_outputs(
        self, dy: Float[Array, "images new_height new_width features"]
    ) -> Float[Array, "rows features"]:
        """Outputs as `padded_rows` at whose places their windows begin, zero where none does.

        As many rows as a shift reaches are before them: seen from a pixel, windows begin there.
        """
        sides = [(0, n - m) for n, m in zip(self.grid, self.outputs, strict=True)]
        dy = _padded(dy, ((0, 0), *sides, (0, 0))).reshape(self.n_rows, -1)
        return _padded(dy, ((self.reach, LARGEST_TILE), (0, 0)))

    def to_outputs(
        self, rows: Float[Array, "rows features"]
    ) -> Float[Array, "images new_height new_width features"]:
        """Outputs from the rows at whose places their windows begin."""
        (down, across), features = self.outputs, rows.shape[1]
        y = rows[: self.n_rows].reshape(self.n_images, *self.grid, features)
        return y[:, :down, :across]

    def to_images(
        self, rows: Float[Array, "phases rows features"]
    ) -> Float[Array, "images height width features"]:
        """Images from the rows of every phase; pixels that no window reaches are zero."""
        strides, (height, width) = self.geometry.strides, self.grid
        x = rows[:, : self.n_rows].reshape(*strides, self.n_images, height, width, -1)
        x = x.transpose(2, 3, 0, 4, 1, 5)
        x = x.reshape(self.n_images, height * strides[0], width * strides[1], -1)
        sides = zip(self.image, x.shape[1:3], self.geometry.padding, strict=True)
        config = [(-low, length + low - n) for length, n, (low, _) in sides]
        return _padded(x, ((0, 0), *config, (0, 0)))


def _padded(x: Array, sides: tuple[tuple[int, int], ...]) -> Array:
    """Zeros before and behind along every axis; fewer than none drops."""
    return jax.lax.pad(x, jnp.zeros((), x.dtype), [(low, high, 0) for low, high in sides])
