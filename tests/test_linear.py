"""The operation and its gradients against float64 NumPy products, along both axes."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear_problem import (
    AXES,
    BLOCK,
    CHANNELS,
    IN,
    MODES,
    OUT,
    Problem,
    turned,
    value_and_gradients,
)

from pallas_kernels import Engine, SparseLayer
from pallas_kernels.sparse_layer import Phase
from sparsemlp import BlockMask, GradientPruning, linear, select_blocks, sparse_linear
from sparsemlp.engines import choose_engine
from sparsemlp.errors import InputError


def products(x, kernel, bias, dy, mask, backward) -> tuple[np.ndarray, ...]:
    """The arrays y, dx, dW, db of the table in `sparse_linear`, features last."""
    rows_x, rows_dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    masked = kernel * mask
    y = x @ masked + bias
    dx = dy @ (kernel if backward == "dense" else masked).T
    dw = rows_x.T @ rows_dy * (mask if backward == "masked" else 1)
    return y, dx, dw, rows_dy.sum(axis=0)


@AXES
@pytest.mark.parametrize("backward", MODES)
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_value_and_gradients_are_the_products_of_the_table(axis, backward, with_bias, dtype):
    problem = Problem(dtype=dtype)
    x, kernel, bias, dy, mask = problem.float64()
    bias = bias if with_bias else np.zeros(OUT)
    expected = products(x, kernel, bias, dy, mask, backward)
    magnitudes = products(abs(x), abs(kernel), abs(bias), abs(dy), mask, backward)
    actual = value_and_gradients(
        turned(problem.x, axis),
        problem.kernel,
        problem.bias if with_bias else None,
        problem.mask,
        turned(problem.dy, axis),
        axis,
        backward,
    )
    assert (actual[3] is None) == (not with_bias)
    # K roundings of random sign, at most, in a sum of K products.
    rounding = 2 * float(jnp.finfo(dtype).eps) * math.sqrt(max(IN + 1, OUT, x.size // IN))
    for index, (got, want, magnitude) in enumerate(zip(actual, expected, magnitudes, strict=True)):
        if got is not None:
            got = turned(got, axis) if index < 2 else got
            assert got.dtype == dtype
            assert got.shape == want.shape
            error = np.abs(np.asarray(got).astype(np.float64) - want)
            assert np.all(error <= rounding * magnitude), ("y", "dx", "dw", "db")[index]


@AXES
def test_masked_is_the_true_gradient_of_the_masked_function(axis):
    problem = Problem()
    x, kernel, bias, _, mask = problem.float64()

    def loss64(x, kernel, bias) -> float:
        return float(np.sin(x @ (kernel * mask) + bias).sum())

    def loss(x, kernel, bias):
        return jnp.sum(jnp.sin(sparse_linear(x, kernel, bias, axis=axis, mask=problem.mask)))

    at = (turned(problem.x, axis), problem.kernel, problem.bias)
    dx, dw, db = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*at)
    step, arrays = 1e-5, [x, kernel, bias]
    # The differences err by step**2; the sums have 6 to 8 terms of magnitude up to about 10.
    tolerance = 4 * np.finfo(np.float32).eps * math.sqrt(8) * 10
    for position, gradient in enumerate((turned(dx, axis), dw, db)):
        differences = np.zeros(gradient.shape)
        for index in np.ndindex(gradient.shape):
            sides = []
            for sign in (1, -1):
                moved = [a.copy() for a in arrays]
                moved[position][index] += sign * step
                sides.append(loss64(*moved))
            differences[index] = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose(gradient, differences, atol=tolerance)


@AXES
def test_only_masked_gives_dropped_weights_a_gradient_of_exactly_zero(axis):
    problem = Problem()
    dropped = ~np.asarray(problem.mask.dense())
    for backward in MODES:
        x, dy = turned(problem.x, axis), turned(problem.dy, axis)
        dw = value_and_gradients(x, problem.kernel, problem.bias, problem.mask, dy, axis, backward)[
            2
        ]
        assert np.all(np.asarray(dw)[~dropped] != 0)
        if backward == "masked":
            np.testing.assert_array_equal(np.asarray(dw)[dropped], 0.0)
        else:
            assert np.all(np.asarray(dw)[dropped] != 0)


@AXES
@pytest.mark.parametrize("backward", MODES)
def test_a_full_mask_and_no_mask_are_the_dense_product_bit_for_bit(axis, backward):
    problem = Problem()
    full = select_blocks(problem.kernel, BLOCK, 0.0)

    @jax.jit
    def dense(x, kernel, bias, dy):
        def call(x, kernel, bias):
            return sparse_linear(x, kernel, bias, axis=axis)

        y, pull = jax.vjp(call, x, kernel, bias)
        return y, *pull(dy)

    x, dy = turned(problem.x, axis), turned(problem.dy, axis)
    expected = dense(x, problem.kernel, problem.bias, dy)
    for mask in (None, full):
        actual = value_and_gradients(x, problem.kernel, problem.bias, mask, dy, axis, backward)
        for got, want in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_full_mask_asks_no_engine(monkeypatch):
    def refuse(*arguments: Any, n_rows: int) -> None:
        raise AssertionError("an engine was asked")

    monkeypatch.setattr("sparsemlp.linear.choose_engine", refuse)
    problem = Problem()
    sparse_linear(problem.x, problem.kernel, mask=select_blocks(problem.kernel, BLOCK, 0.0))
    with pytest.raises(AssertionError, match="an engine was asked"):
        sparse_linear(problem.x, problem.kernel, mask=problem.mask)


@AXES
@pytest.mark.parametrize("batch", [(), (4,), (2, 4)], ids=["no batch", "one axis", "two axes"])
def test_any_number_of_leading_axes_is_a_batch(batch, axis):
    # Along tokens the channels are an axis of their own, which is not part of the batch.
    problem = Problem(batch if axis == -1 else (*batch, CHANNELS))
    x, kernel, bias, _, mask = problem.float64()
    y = sparse_linear(
        turned(problem.x, axis), problem.kernel, problem.bias, axis=axis, mask=problem.mask
    )
    magnitude = abs(x) @ abs(kernel) + abs(bias)
    error = np.abs(turned(np.asarray(y, np.float64), axis) - (x @ (kernel * mask) + bias))
    assert np.all(error <= 2 * np.finfo(np.float32).eps * math.sqrt(IN + 1) * magnitude)


@pytest.mark.parametrize("backward", MODES)
def test_tokens_are_features_transposed_by_hand(backward):
    problem = Problem()
    arguments = (problem.kernel, problem.bias, problem.mask)
    along = value_and_gradients(problem.x, *arguments, problem.dy, -1, backward)
    x, dy = turned(problem.x, -2), turned(problem.dy, -2)
    y, dx, dw, db = value_and_gradients(x, *arguments, dy, -2, backward)
    # Two float32 sums of the same at most 8 terms, of magnitude up to about 3 x 3 each.
    tolerance = 4 * np.finfo(np.float32).eps * math.sqrt(8) * 9
    for got, want in zip((turned(y, -2), turned(dx, -2), dw, db), along, strict=True):
        np.testing.assert_allclose(got, want, atol=tolerance)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@AXES
def test_operands_of_one_dtype_need_no_implicit_promotion(axis, dtype):
    problem = Problem(dtype=dtype)
    x, dy = turned(problem.x, axis), turned(problem.dy, axis)
    with jax.numpy_dtype_promotion("strict"):
        for backward in MODES:
            value_and_gradients(x, problem.kernel, problem.bias, problem.mask, dy, axis, backward)


def test_operands_meet_in_their_common_dtype_and_gradients_keep_their_own():
    problem = Problem()
    x = problem.x.astype(jnp.bfloat16)

    def loss(x, kernel):
        y = sparse_linear(x, kernel, mask=problem.mask)
        assert y.dtype == jnp.float32
        return jnp.sum(y)

    dx, dw = jax.grad(loss, argnums=(0, 1))(x, problem.kernel)
    assert (dx.dtype, dw.dtype) == (jnp.bfloat16, jnp.float32)


def test_a_weak_dtype_gives_way_as_in_a_product_of_jax():
    kernel = Problem(dtype=jnp.bfloat16).kernel
    x = jnp.full((2, kernel.shape[0]), 1.0)
    assert x.weak_type
    assert sparse_linear(x, kernel).dtype == (x @ kernel).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x": jnp.ones((4, 5))}, ["x of shape (4, 5)", "6x8", "axis -1 must have 6 entries"]),
        ({"x": jnp.ones((4, 6)), "axis": -2}, ["(4, 6)", "axis -2 must have 6 entries"]),
        ({"x": jnp.ones(6), "axis": -2}, ["(6,)", "axis -2 must have 6 entries"]),
        ({"bias": jnp.ones(6)}, ["bias of shape (6,)", "8 outputs"]),
        ({"kernel": jnp.ones((1, 6, 8))}, ["kernel of shape (1, 6, 8)", "[in, out]"]),
        (
            {"mask": BlockMask(jnp.array([0], jnp.int32), (8, 6), (2, 2))},
            ["mask", "(8, 6)", "(6, 8)"],
        ),
        ({"mask": jnp.ones((6, 8), bool)}, ["mask of type ArrayImpl", "select_blocks"]),
        ({"axis": 0}, ["axis 0", "-1 (features)", "-2 (tokens)"]),
        ({"axis": 1}, ["axis 1", "-1 (features)", "-2 (tokens)"]),
        ({"backward": "unmasked"}, ["backward 'unmasked'", "masked, dense, straight_through"]),
        (
            {"engine": "cuda"},
            ["engine 'cuda' is unknown", "auto, cpu, mosaic, triton, jax-triton, reference"],
        ),
        ({"gradient": GradientPruning(2, 3)}, ["2:3", "8 entries", "8 % 3 = 2", "2, 4, 8"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_input_names_the_value_the_rule_and_the_way_out(changes, says, unchecked):
    good = {"x": jnp.ones((4, IN)), "kernel": jnp.ones((IN, OUT))}
    with pytest.raises(InputError) as caught:
        sparse_linear(**{**good, **changes})
    for part in says:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_auto_is_asked_with_the_rows_of_the_contracted_axis(monkeypatch):
    asked = []

    def noted(engine: str, layer: SparseLayer, phase: Phase, n_rows: int) -> Engine:
        asked.append((phase, n_rows))
        return choose_engine(engine, layer, phase, n_rows)

    monkeypatch.setattr(linear, "choose_engine", noted)
    mask = BlockMask(jnp.array([0], jnp.int32), (6, 8), (2, 2))
    sparse_linear(jnp.ones((4, 5, 6)), jnp.ones((6, 8)), mask=mask)
    sparse_linear(jnp.ones((4, 6, 5)), jnp.ones((6, 8)), mask=mask, axis=-2)
    phases = ("product", "input_gradient", "kernel_gradient")
    assert asked == [(phase, 20) for phase in phases] * 2


@AXES
@pytest.mark.parametrize(("n_in", "n_out"), [(0, 8), (6, 0)])
def test_a_layer_of_no_features_is_its_bias_and_has_gradients(axis, n_in, n_out):
    x = turned(jnp.ones((2, 3, n_in)), axis)
    kernel, bias = jnp.ones((n_in, n_out)), jnp.ones(n_out)
    dy = turned(jnp.ones((2, 3, n_out)), axis)
    y, dx, dw, db = value_and_gradients(x, kernel, bias, None, dy, axis, "masked")
    np.testing.assert_array_equal(y, dy)
    np.testing.assert_array_equal(dx, jnp.zeros_like(x))
    np.testing.assert_array_equal(dw, jnp.zeros_like(kernel))
    np.testing.assert_array_equal(db, 6 * bias)


def test_a_wider_bias_widens_the_result():
    mask = BlockMask(jnp.array([0], jnp.int32), (6, 8), (2, 2))
    x, kernel = jnp.ones((4, 6), jnp.bfloat16), jnp.ones((6, 8), jnp.bfloat16)
    assert sparse_linear(x, kernel, jnp.ones(8, jnp.float32), mask=mask).dtype == jnp.float32
