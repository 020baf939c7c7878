"""The phases compute what they are named after, for the dense layer and for the sparse one."""

import dataclasses
import math
from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.linear_phases import Tensors, n_flops, phases, random_tensors
from jaxtyping import Array

from pallas_kernels import SparseLayer
from sparsemlp import BlockMask
from sparsemlp.rules import Backward

N_ROWS, CHANNELS, RATIO = 12, 3, 0.6
MODES = get_args(Backward)


def layer_of(axis: Literal[-1, -2]) -> SparseLayer:
    return SparseLayer((8, 12), (3, 4), math.ceil(8 * (1 - RATIO)), axis, "float32")


def masked(tensors: Tensors, layer: SparseLayer) -> Tensors:
    """The same tensors with a kernel that is zero in the dropped blocks."""
    mask = BlockMask(tensors.kept, layer.kernel_shape, layer.block).dense()
    return tensors._replace(kernel=jnp.where(mask, tensors.kernel, 0))


def assert_equal(actual: Array, expected: Array) -> None:
    """Up to the rounding of sums over as many as 12 products of normal numbers."""
    tolerance = 4 * np.finfo(np.float32).eps * math.sqrt(12) * 10
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("backward", MODES)
def test_the_parts_are_those_of_the_whole(axis: Literal[-1, -2], backward: Backward) -> None:
    layer = layer_of(axis)
    tensors = random_tensors(layer, N_ROWS, CHANNELS, RATIO)
    found = phases("reference", layer, backward)
    for contender in (0, 1):
        run = {name: pair[contender] for name, pair in found.items()}
        y, dx, dw, db = run["forward_backward"](tensors)
        assert_equal(run["forward"](tensors), y)
        if "input_gradient" in run:
            assert_equal(run["input_gradient"](tensors), dx)
        if "parameter_gradients" in run:
            for part, whole in zip(run["parameter_gradients"](tensors), (dw, db), strict=True):
                assert_equal(part, whole)


@pytest.mark.parametrize("axis", [-1, -2])
def test_sparse_is_dense_with_a_masked_kernel(axis: Literal[-1, -2]) -> None:
    layer = layer_of(axis)
    tensors = random_tensors(layer, N_ROWS, CHANNELS, RATIO)
    found = phases("reference", layer, "masked")
    for name in ("forward", "input_gradient"):
        baseline, sparse = found[name]
        assert_equal(sparse(tensors), baseline(masked(tensors, layer)))
        assert np.abs(np.subtract(sparse(tensors), baseline(tensors))).max() > 0.1


def test_a_gradient_that_stays_dense_is_no_phase() -> None:
    layer = layer_of(-1)
    names = {mode: list(phases("reference", layer, mode)) for mode in MODES}
    assert names == {
        "masked": ["forward", "input_gradient", "parameter_gradients", "forward_backward"],
        "straight_through": ["forward", "input_gradient", "forward_backward"],
        "dense": ["forward", "forward_backward"],
    }


def test_the_operations_are_those_of_the_weights_that_are_used() -> None:
    layer = layer_of(-1)
    kept, every = 4 * 12, 96
    assert layer.n_kept * 12 == kept
    products = {mode: n_flops(layer, N_ROWS, mode) // (2 * N_ROWS) for mode in MODES}
    assert products == {
        "masked": 3 * kept,
        "straight_through": 2 * kept + every,
        "dense": kept + 2 * every,
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("axis", "x", "dy"), [(-1, (12, 8), (12, 12)), (-2, (4, 8, 3), (4, 12, 3))]
)
def test_tensors_have_the_shapes_of_the_layer(
    dtype: str, axis: Literal[-1, -2], x: tuple[int, ...], dy: tuple[int, ...]
) -> None:
    layer = dataclasses.replace(layer_of(axis), dtype=dtype)
    tensors = random_tensors(layer, N_ROWS, CHANNELS, RATIO)
    assert (tensors.x.shape, tensors.dy.shape) == (x, dy)
    assert {str(array.dtype) for array in tensors[:4]} == {dtype}
    assert tensors.kept.shape == (4,)
