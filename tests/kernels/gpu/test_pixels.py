"""Images as rows of pixels: every window is where its position says, and sums go back there."""

import jax.numpy as jnp
import numpy as np
import pytest
import unfolded

from pallas_kernels.dense_convolution import Geometry
from pallas_kernels.triton.pixels import Pixels

SHAPE = (3, 5, 6, 2)
WALKS = [
    ((3, 3), Geometry((1, 1), ((1, 1), (1, 1)))),
    ((5, 5), Geometry((2, 2), ((2, 2), (2, 2)))),
    ((2, 3), Geometry((1, 2), ((0, 0), (2, 1)))),
    ((2, 1), Geometry((3, 2), ((0, 0), (0, 0)))),
    ((1, 2), Geometry((1, 1), ((4, 0), (0, 3)))),
]


def pixels_of(size, geometry) -> Pixels:
    return Pixels(SHAPE[0], (SHAPE[1], SHAPE[2]), size, geometry)


@pytest.mark.parametrize(("size", "geometry"), WALKS, ids=str)
def test_a_position_reads_every_window_so_many_rows_further(size, geometry):
    pixels = pixels_of(size, geometry)
    x = jnp.arange(1, 1 + np.prod(SHAPE), dtype=jnp.float32).reshape(SHAPE)
    index, _ = unfolded.windows(SHAPE, size, geometry.strides, geometry.padding)
    windows = unfolded.unfold(x, index).reshape(SHAPE[0], *pixels.outputs, -1, SHAPE[3])
    rows = pixels.of_images(x)
    assert rows.shape == (pixels.n_phases * pixels.padded_rows, SHAPE[3])
    for position in range(size[0] * size[1]):
        phase, shift = (int(a) for a in pixels.place(jnp.int32(position)))
        first = phase * pixels.padded_rows + shift
        assert 0 <= shift <= pixels.reach
        seen = pixels.to_outputs(rows[first : first + pixels.n_rows])
        np.testing.assert_array_equal(seen, windows[..., position, :])


@pytest.mark.parametrize(("size", "geometry"), WALKS, ids=str)
def test_seen_from_a_pixel_windows_begin_so_many_rows_before(size, geometry):
    pixels = pixels_of(size, geometry)
    dy = jnp.asarray(np.random.default_rng(0).normal(size=(3, *pixels.outputs, 2)), jnp.float32)
    index, _ = unfolded.windows(SHAPE, size, geometry.strides, geometry.padding)
    rows, length = pixels.of_outputs(dy), pixels.n_rows
    sums = np.zeros((pixels.n_phases, length, 2), np.float32)
    unfolded_dy = np.repeat(np.asarray(dy).reshape(-1, 1, 2), size[0] * size[1], axis=1)
    for position in range(size[0] * size[1]):
        phase, shift = (int(a) for a in pixels.place(jnp.int32(position)))
        sums[phase] += np.asarray(rows)[pixels.reach - shift :][:length]
    found = pixels.to_images(jnp.asarray(sums))
    expected = unfolded.fold(unfolded_dy.reshape(len(index), -1), index, SHAPE)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_what_windows_never_begin_at_is_a_fifth_of_16x16_for_3x3():
    pixels = Pixels(1, (16, 16), (3, 3), WALKS[0][1])
    assert pixels.grid == (18, 18)
    assert 1 - 256 / pixels.n_rows == pytest.approx(0.2, abs=0.02)
