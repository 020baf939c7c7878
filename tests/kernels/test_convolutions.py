"""The products of masked convolutions by every engine that has them, against NumPy float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import unfolded
from native import needs_native

from pallas_kernels import ENGINES, SparseLayer
from pallas_kernels.cpu.convolutions import CpuConvolutions
from pallas_kernels.dense_convolution import Geometry

EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-8}
IMAGES, N_OUT = (3, 5, 6, 16), 32
CASES = [
    ((3, 3), Geometry((1, 1), ((1, 1), (1, 1))), (16, 16)),
    ((5, 5), Geometry((2, 2), ((2, 2), (2, 2))), (32, 16)),
    ((2, 3), Geometry((1, 2), ((0, 0), (2, 1))), (8, 24)),  # blocks across positions
    ((3, 1), Geometry((2, 3), ((2, 2), (0, 3))), (4, 4)),
    ((1, 1), Geometry((1, 1), ((0, 0), (0, 0))), (1, 16)),
    ((3, 2), Geometry((2, 3), ((2, 1), (0, 3))), (16, 16)),
    ((2, 1), Geometry((3, 2), ((0, 0), (0, 0))), (32, 16)),  # pixels that no window reads
]
OF_A_GPU = [case for case in CASES if case[2] in ((16, 16), (32, 16))]
"""Blocks of tensor cores, each of one position."""
EVERY = [
    *((engine, case) for engine in ("reference", "cpu") for case in CASES),
    *(("triton", case) for case in OF_A_GPU),
]


@functools.partial(jax.jit, static_argnames=("engine", "layer", "size", "geometry"))
def products(engine, layer, size, geometry, x, kernel, bias, kept, dy):
    own = ENGINES[engine]
    y = own.convolution(x, kernel, bias, kept, layer, geometry)
    dx = own.convolution_input_gradient(dy, kernel, kept, layer, IMAGES[1:3], geometry)
    return y, dx, *own.convolution_gradients(x, dy, kept, layer, size, geometry)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("engine", "case"),
    [pytest.param(*each, marks=[needs_native] * (each[0] == "cpu")) for each in EVERY],
    ids=str,
)
def test_each_product_is_that_of_unfolded_images(engine, case, dtype):
    size, geometry, block = case
    rng = np.random.default_rng(0)
    matrix = (size[0] * size[1] * IMAGES[3], N_OUT)
    grid = rng.random((matrix[0] // block[1], matrix[1] // block[0])) < 0.4
    kept = jnp.asarray(np.flatnonzero(grid), jnp.int32)
    layer = SparseLayer(matrix, block, len(kept), -1, dtype)
    index, outputs = unfolded.windows(IMAGES, size, geometry.strides, geometry.padding)
    assert geometry.outputs(IMAGES[1:3], size) == outputs[1:]
    shapes = (IMAGES, (*size, IMAGES[3], N_OUT), (N_OUT,), (*outputs, N_OUT))
    x, kernel, bias, dy = (jnp.asarray(rng.normal(size=s), dtype) for s in shapes)
    found = products(engine, layer, size, geometry, x, kernel, bias, kept, dy)
    rows, flat = unfolded.unfold(x, index), np.float64(dy).reshape(-1, N_OUT)
    mask = np.repeat(np.repeat(grid, block[1], axis=0), block[0], axis=1)
    w = np.float64(kernel).reshape(matrix) * mask
    expected = (
        rows @ w + np.float64(bias),
        unfolded.fold(flat @ w.T, index, IMAGES),
        rows.T @ flat * mask,
        flat.sum(axis=0),
    )
    for name, a, e in zip(("y", "dx", "dw", "db"), found, expected, strict=True):
        assert a.dtype == dtype
        a = np.asarray(a, np.float64).reshape(e.shape)
        terms = {"y": matrix[0], "dx": size[0] * size[1] * N_OUT}.get(name, len(flat))
        atol = 4 * EPS[dtype] * np.sqrt(terms) * 16
        np.testing.assert_allclose(a, e, rtol=EPS[dtype], atol=atol, err_msg=name)
        if name == "dw":
            assert not np.any(a[~mask])


def pays(phase, block, n_kept) -> bool:
    layer = SparseLayer((640, 320), block, n_kept, -1, "float32")
    return CpuConvolutions().pays_convolving(phase, layer, 512)


PHASES = ("product", "input_gradient", "kernel_gradient")


def test_wide_blocks_pay_at_any_ratio_and_narrower_ones_from_one_on():
    for phase in PHASES:
        assert pays(phase, (32, 32), 200)
        assert pays(phase, (64, 32), 100)
        assert (pays(phase, (16, 16), 560), pays(phase, (16, 16), 561)) == (True, False)
        assert (pays(phase, (8, 8), 640), pays(phase, (8, 8), 641)) == (True, False)
        assert not pays(phase, (4, 4), 1)


def test_what_lies_along_a_vector_is_another_side_in_each_product():
    assert [pays(phase, (16, 1), 1) for phase in PHASES] == [True, False, False]
    assert [pays(phase, (1, 16), 1) for phase in PHASES] == [False, True, False]
