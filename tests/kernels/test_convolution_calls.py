"""The native kernels for convolutions as XLA calls: what is wrong is refused, mapping is right."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native import needs_native
from native_calls import (
    all_of,
    convolution,
    convolution_gradient,
    convolution_input_gradient,
    ids,
    int64s,
    ones,
    refused,
    result,
)

from pallas_kernels import ENGINES, SparseLayer
from pallas_kernels.dense_convolution import Geometry

CPU = ENGINES["cpu"]
pytestmark = needs_native
EACH = pytest.mark.parametrize(
    "make",
    [convolution, convolution_input_gradient, convolution_gradient],
    ids=lambda make: make.__name__,
)
MATRIX = SparseLayer((8, 6), (3, 2), 3, -1, "float32")
GEOMETRY = Geometry((1, 2), ((1, 0), (0, 1)))
KEPT = jnp.array([0, 3, 6], jnp.int32)


def test_the_calls_that_are_made_wrong_below_are_right():
    kept = np.array(
        [[1, 0], [1, 1], [0, 0], [0, 0]]
    )  # the positions of the first line, [down, out]
    (y,) = convolution()()
    np.testing.assert_array_equal(y[0, 0, 0], 1 + 2 * np.repeat(kept.sum(axis=0), 3))
    (dx,) = convolution_input_gradient()()
    np.testing.assert_array_equal(dx[1, 0, :, 0], [3, 6, 3, 6, 0])
    assert not np.any(dx[:, 3])  # under the second line of the kernel alone
    dw, db = convolution_gradient()()
    np.testing.assert_array_equal(dw[0, :, 1, ::3], 12 * kept[:2])
    assert not np.any(dw[1])
    np.testing.assert_array_equal(db, np.full(6, 12))


@EACH
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_kept_blocks_nothing_is_left_but_the_bias(make, dtype):
    found = all_of(make, dtype).but(kept=ids())()
    if make is not convolution_gradient:
        np.testing.assert_array_equal(found[0], np.full_like(found[0], make is convolution))
    else:
        np.testing.assert_array_equal(found[1], np.full(6, 12, dtype))
        assert not np.any(found[0])


@EACH
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": 4}, "block 4x2 does not divide the kernel [in, out] = [8, 6]"),
        ({"cols": 0}, "block 3x0 does not divide"),
        ({"stride_down": 0}, "strides must be positive"),
        ({"stride_across": -1}, "strides must be positive"),
        ({"above": -1}, "padding not negative"),
        ({"left": -(2**63)}, "padding not negative"),
        ({"above": 2**31}, "less than 2^31"),
        ({"stride_across": 2**62}, "less than 2^31"),
    ],
    ids=str,
)
def test_a_walk_that_is_none_is_refused(make, changes, said):
    assert said in refused(make().but(**int64s(**changes)))


@EACH
@pytest.mark.parametrize(
    "kept", [ids(-1, 2), ids(0, 8), ids(2, 0), ids(1, 1), ids(0, dtype=np.int64), ids([0])]
)
def test_ids_that_are_no_blocks_are_refused(make, kept):
    assert "the ids of kept blocks" in refused(make().but(kept=kept))


@pytest.mark.parametrize(
    ("make", "changes", "said"),
    [
        (convolution, {"x": ones(2, 4, 5, 3)}, "x of shape [2, 4, 5, 3] is no images of 2"),
        (convolution, {"x": ones(5, 2)}, "x of shape [5, 2] is no images of 2"),
        (convolution, {"x": ones(3, 4, 5, 2)}, "does not fit y of shape [2, 3, 2, 6]"),
        (convolution, {"y": result(2, 3, 2, 5)}, "is no images of 6 channels"),
        (convolution, {"y": result(3, 2, 6)}, "as many as x of shape [2, 4, 5, 2]"),
        (convolution, {"kernel": ones(8, 6)}, "the kernel is not [down, across, channels, out]"),
        (convolution, {"bias": ones(5)}, "bias of shape [5] does not fit"),
        (convolution, {"bias": ones(6, dtype=jnp.bfloat16)}, "must have one dtype"),
        (convolution_input_gradient, {"dy": ones(2, 3, 2, 7)}, "is no images of 6 channels"),
        (convolution_input_gradient, {"dx": result(1, 4, 5, 2)}, "does not fit"),
        (convolution_input_gradient, {"kernel": ones(2, 2, 2, 6, dtype=jnp.bfloat16)}, "one dtype"),
        (convolution_gradient, {"dw": result(8, 6)}, "the kernel is not [down, across"),
        (convolution_gradient, {"db": result(5)}, "db of shape [5] does not fit"),
        (convolution_gradient, {"dy": ones(2, 3, 2, 6, dtype=jnp.bfloat16)}, "one dtype"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(make, changes, said):
    assert said in refused(make().but(**changes))


@EACH
def test_other_dtypes_are_refused(make):
    assert "only float32 and bfloat16" in refused(all_of(make, np.float64))


def operands(*batch: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    shapes = ((*batch, 2, 4, 5, 2), (2, 2, 2, 6), (6,), (*batch, 2, 4, 3, 6))
    x, kernel, bias, dy = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes)
    return x, kernel, bias, dy


def products(x, kernel, bias, dy) -> tuple[jax.Array, ...]:
    y = CPU.convolution(x, kernel, bias, KEPT, MATRIX, GEOMETRY)
    dx = CPU.convolution_input_gradient(dy, kernel, KEPT, MATRIX, (4, 5), GEOMETRY)
    return y, dx, *CPU.convolution_gradients(x, dy, KEPT, MATRIX, (2, 2), GEOMETRY)


def test_mapping_over_images_alone_is_a_larger_batch():
    x, kernel, bias, dy = operands(3)
    found = jax.jit(jax.vmap(products, in_axes=(0, None, None, 0)))(x, kernel, bias, dy)
    one = jax.jit(products)
    members = [one(*each, kernel, bias, own) for each, own in zip(x[:, None], dy, strict=True)]
    for a, b in zip(found, zip(*members, strict=True), strict=True):
        np.testing.assert_allclose(a, np.stack(b), rtol=0, atol=1e-5)
    mapped = jax.vmap(lambda x: CPU.convolution(x, kernel, bias, KEPT, MATRIX, GEOMETRY))
    assert "scan" not in str(jax.make_jaxpr(mapped)(x))


def test_mapping_over_kernels_is_one_after_another():
    x, kernel, bias, dy = operands()
    kernels = jnp.stack([kernel, 2 * kernel])
    found = jax.jit(jax.vmap(functools.partial(products, x, bias=bias, dy=dy)))(kernel=kernels)
    (once, twice), (dx, twice_dx) = found[0] - bias, found[1]
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(twice_dx, 2 * dx)
