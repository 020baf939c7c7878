"""The three products of a convolution against unfolded images in NumPy float64."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import unfolded

from pallas_kernels import dense, dense_convolution
from pallas_kernels.dense_convolution import Geometry

EPS = np.finfo(np.float32).eps
X, N_OUT = (2, 5, 6, 3), 4
CASES = [
    ((3, 3), Geometry((1, 1), ((1, 1), (1, 1)))),
    ((2, 3), Geometry((1, 1), ((0, 0), (2, 1)))),
    ((3, 2), Geometry((2, 3), ((1, 0), (0, 1)))),
    ((2, 1), Geometry((3, 2), ((2, 2), (0, 3)))),
    ((1, 1), Geometry((1, 1), ((0, 0), (0, 0)))),
]
CROPPED = [
    ((1, 3, 3, 64), (3, 3), Geometry((3, 3), ((1, 1), (1, 1)))),
    ((1, 4, 4, 32), (4, 4), Geometry((4, 4), ((2, 2), (2, 2)))),
    ((1, 2, 2, 16), (2, 2), Geometry((2, 2), ((1, 0), (1, 0)))),
    ((1, 1, 2, 7), (1, 1), Geometry((1, 1), ((3, 2), (0, 4)))),
    ((3, 5, 1, 8), (2, 1), Geometry((4, 3), ((0, 3), (5, 0)))),
    ((1, 6, 6, 4), (2, 2), Geometry((3, 3), ((0, 0), (0, 0)))),
]
"""Pixels that no output sees, and outputs that see no pixel: gradients have negative padding."""
EACH = pytest.mark.parametrize(("size", "geometry"), CASES, ids=str)


def normal(shape: tuple[int, ...], seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def close(actual, expected, n_terms: int, size: float) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=4 * EPS * np.sqrt(n_terms) * size)


@pytest.mark.parametrize(
    ("shape", "size", "geometry"), [*((X, *case) for case in CASES), *CROPPED], ids=str
)
def test_each_product_is_that_of_unfolded_images(shape, size, geometry):
    n_in, n_out = shape[3], N_OUT if shape == X else 130
    index, outputs = unfolded.windows(shape, size, geometry.strides, geometry.padding)
    x, kernel = normal(shape, 0), normal((*size, n_in, n_out), 1)
    dy = normal((*outputs, n_out), 2)
    rows, matrix = unfolded.unfold(x, index), np.float64(kernel).reshape(-1, n_out)
    flat = np.float64(dy).reshape(-1, n_out)
    y = jax.jit(functools.partial(dense_convolution.product, geometry=geometry))(x, kernel)
    close(y.reshape(-1, n_out), rows @ matrix, len(matrix), 10)
    dx = dense_convolution.input_gradient(dy, kernel, shape[1:3], geometry)
    expected = unfolded.fold(flat @ matrix.T, index, shape)
    close(dx, expected, len(matrix) * n_out, 10)
    np.testing.assert_array_equal(np.asarray(dx)[expected == 0], 0)
    dw = dense_convolution.kernel_gradient(x, dy, size, geometry)
    close(dw.reshape(-1, n_out), rows.T @ flat, len(rows), 10)
    close(dense.bias_gradient(dy, -1), flat.sum(axis=0), len(rows), 4)


@pytest.mark.parametrize(
    ("size", "geometry"), [c for c in CASES if c[1].strides == (1, 1)], ids=str
)
def test_the_kernels_gradient_is_a_product_of_pixels_at_each_position(size, geometry):
    x, dy_shape = normal(X, 0), unfolded.windows(X, size, (1, 1), geometry.padding)[1]
    dy = normal((*dy_shape, N_OUT), 2)

    def product(seen):
        assert seen.shape == (*X[:3], N_OUT)
        return x.reshape(-1, X[3]).T @ seen.reshape(-1, N_OUT)

    found = dense_convolution.by_position(product, dy, size, X[1:3], geometry)
    index, _ = unfolded.windows(X, size, (1, 1), geometry.padding)
    expected = unfolded.unfold(x, index).T @ np.float64(dy).reshape(-1, N_OUT)
    assert found.shape == (*size, X[3], N_OUT)
    close(found.reshape(expected.shape), expected, len(index), 10)


@EACH
def test_convolutions_in_loops_have_the_one_order_of_axes_that_is_fast_there(size, geometry):
    x, kernel = normal(X, 0), normal((*size, X[3], N_OUT), 1)

    def step(w, _):
        y = dense_convolution.product(x, w, geometry)
        dx = dense_convolution.input_gradient(y, w, X[1:3], geometry)
        return w - dense_convolution.kernel_gradient(dx, y, size, geometry), None

    loop = jax.jit(lambda w: jax.lax.scan(step, w, None, length=2)[0])
    text = loop.lower(kernel).compile().as_text() or ""
    found = re.findall(r" convolution\(.*dim_labels=([^\s,]+)", text)
    if size != (1, 1):  # those are products of matrices
        assert found
    assert set(found) <= {"b01f_01io->b01f"}


def test_many_channels_have_the_same_gradient_as_few():
    """Processors take another way from 128 channels on."""
    x, dy = normal((1, 3, 4, 128), 0), normal((1, 3, 4, N_OUT), 1)
    geometry = Geometry((1, 1), ((1, 1), (1, 1)))
    found = dense_convolution.kernel_gradient(x, dy, (3, 3), geometry)
    few = [
        dense_convolution.kernel_gradient(part, dy, (3, 3), geometry)
        for part in jnp.split(x, 8, axis=3)
    ]
    close(found, np.concatenate(few, axis=2), 12, 10)


def test_a_kernel_of_one_pixel_without_padding_reads_pixels_alone():
    plain = Geometry((2, 2), ((0, 0), (0, 0)))
    assert plain.reads_pixels_alone((1, 1))
    assert not plain.reads_pixels_alone((1, 2))
    assert not Geometry((1, 1), ((0, 0), (1, 0))).reads_pixels_alone((1, 1))
