"""Two layers with a GELU between them, fused and step by step, against float64 NumPy."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_mlp
from mlp_cases import (
    ALL_ENGINES,
    BOTH_ENGINES,
    CASES,
    FACTORS,
    FUSED,
    IN,
    Case,
    Operands,
    assert_conforms,
    compiled,
    draw,
    expected,
    mask_of,
)
from native import needs_native

from sparsemlp.mlp import Linear, sparse_mlp

EPS = float(np.finfo(np.float32).eps)


def test_every_two_choices_meet_in_a_case():
    for (i, first), (j, second) in itertools.combinations(enumerate(FACTORS), 2):
        met = {(chosen[i], chosen[j]) for chosen in CASES}
        assert met == set(itertools.product(first, second))


OF_TRITON = [choice for choice in CASES if choice.blocks != "small"]
"""A side of a block is 16 there at least."""
FEW_OF_TRITON = [CASES[1], CASES[3], CASES[4]]
"""Each blocks, dtype and batch once: an interpreted kernel takes seconds to compile."""


def name_of(choice: Case) -> str:
    return "-".join(map(str, choice))


@needs_native
@pytest.mark.parametrize("choice", CASES, ids=name_of)
def test_fused_layers_have_the_values_and_gradients_of_their_definition(choice):
    check_fused("cpu", choice)


@needs_native
@pytest.mark.parametrize("choice", CASES, ids=name_of)
def test_fused_layers_have_straight_through_gradients(choice):
    """Those of whole kernels, constant hidden units among them."""
    operands, both = draw(choice), ("straight_through", "straight_through")
    actual = compiled(operands, engine="cpu", residual=choice.residual, backwards=both)
    assert_conforms(actual, expected(operands, choice.residual, both), choice.dtype)
    for mask, name in zip(operands.masks, ("dw1", "dw2"), strict=True):
        assert np.any(np.asarray(actual[name])[~np.asarray(mask.dense())] != 0)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    "choice",
    [
        pytest.param(choice, marks=[] if choice in FEW_OF_TRITON else pytest.mark.exhaustive)
        for choice in OF_TRITON
    ],
    ids=name_of,
)
def test_fused_layers_of_a_gpu_have_them_too(choice, interpreted):
    check_fused("triton", choice)


def check_fused(engine: str, choice: Case) -> None:
    """Raises AssertionError unless the engine computes the fused layers of `choice`."""
    operands = draw(choice)
    actual = compiled(operands, engine=engine, residual=choice.residual)
    assert_conforms(actual, expected(operands, choice.residual), choice.dtype)
    for mask, name in zip(operands.masks, ("dw1", "dw2"), strict=True):
        dropped = ~np.asarray(mask.dense())
        np.testing.assert_array_equal(np.asarray(actual[name])[dropped], 0)


@pytest.mark.parametrize("choice", CASES[:5], ids=name_of)
def test_step_by_step_is_the_definition_too(choice):
    choice = choice._replace(dtype="float32")
    operands = draw(choice)
    actual = compiled(operands, engine="reference", residual=choice.residual)
    assert_conforms(actual, expected(operands, choice.residual), choice.dtype)


def forget_a_block(operands: Operands, which: int) -> Operands:
    masks = list(operands.masks)
    masks[which] = dataclasses.replace(masks[which], kept=masks[which].kept[:-1])
    return operands._replace(masks=tuple(masks))


def forget(name: str, operands: Operands) -> Operands:
    return operands._replace(
        arrays={**operands.arrays, name: jnp.zeros_like(operands.arrays[name])}
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "change",
    [
        functools.partial(forget_a_block, which=0),
        functools.partial(forget_a_block, which=1),
        functools.partial(forget, "shift"),
        functools.partial(forget, "b1"),
        functools.partial(forget, "b2"),
    ],
    ids=["block of W1", "block of W2", "shift", "b1", "b2"],
)
def test_a_result_that_lacks_one_operand_does_not_pass(change, dtype):
    """In bfloat16 as well: what is compared is float64 rounded to it."""
    choice = Case("equal", "both", True, True, "both", dtype, (37,))
    operands = draw(choice)
    want = expected(operands, True)
    right, wrong = (
        {name: jnp.asarray(value, dtype) for name, (value, _) in found.items()}
        for found in (want, expected(change(operands), True))
    )
    assert_conforms(right, want, dtype)
    with pytest.raises(AssertionError):
        assert_conforms(wrong, want, dtype)


@needs_native
@pytest.mark.parametrize("constant", [False, True], ids=["computed", "constant"])
def test_the_native_gelu_and_its_derivative_are_exact(constant):
    """Through layers that are the identity; a dropped block of W1 leaves GELU of the bias."""
    x = np.linspace(-12, 12, 37 * IN).reshape(37, IN).astype(np.float32)
    eye, kept = jnp.eye(IN), mask_of(np.eye(IN // 32, dtype=bool), (32, 32))

    def identity(x: jax.Array) -> jax.Array:
        return sparse_mlp(x, Linear(eye, None, kept), Linear(eye, None, kept), engine="cpu")

    def of_the_bias(bias: jax.Array) -> jax.Array:
        # Only one half of the hidden units is constant at a time.
        halves = [
            sparse_mlp(
                jnp.zeros(IN),
                Linear(eye, bias, mask_of(np.array(grid, bool), (32, 32))),
                Linear(eye, None, kept),
                engine="cpu",
            )
            for grid in ([[1, 0], [0, 0]], [[0, 0], [0, 1]])
        ]
        return jnp.concatenate([halves[1][: IN // 2], halves[0][IN // 2 :]])

    compute = jax.vmap(of_the_bias) if constant else identity
    y, pull = jax.vjp(compute, jnp.asarray(x))
    value, derivative = reference_mlp.gelu(x.astype(np.float64))
    # As of the other GELU; the density is multiplied by x, its exponent errs by eps x^2 / 2.
    tolerance = 4 * EPS * np.maximum(np.abs(x), 1)
    assert np.all(abs(np.asarray(y, np.float64) - value) <= tolerance)
    (dx,) = pull(jnp.ones_like(y))
    assert np.all(abs(np.asarray(dx, np.float64) - derivative) <= tolerance)


@needs_native
def test_the_native_gelu_of_huge_numbers_has_slope_one_or_zero():
    eye, kept = jnp.eye(IN), mask_of(np.eye(IN // 32, dtype=bool), (32, 32))
    x = jnp.tile(jnp.asarray([20.0, -20.0, 1e19, -1e19, 1e36, -1e36, 3e38, -3e38]), IN // 8)

    def identity(x: jax.Array) -> jax.Array:
        return sparse_mlp(x, Linear(eye, None, kept), Linear(eye, None, kept), engine="cpu")

    y, pull = jax.vjp(identity, x[None])
    np.testing.assert_array_equal(y[0], jnp.maximum(x, 0))
    np.testing.assert_array_equal(pull(jnp.ones_like(y))[0][0], x > 0)


@ALL_ENGINES
def test_a_dropped_weight_reaches_nothing_even_when_it_is_not_finite(engine, interpreted):
    operands = draw(FUSED)
    arrays = dict(operands.arrays)
    for name, mask in zip(("w1", "w2"), operands.masks, strict=True):
        kernel, dropped = np.array(arrays[name]), ~np.asarray(mask.dense())
        kernel[dropped] = np.resize([np.nan, np.inf, -np.inf], dropped.sum())
        arrays[name] = jnp.asarray(kernel)
    actual = compiled(operands._replace(arrays=arrays), engine=engine, residual=True)
    finite = compiled(operands, engine=engine, residual=True)
    for name, want in finite.items():
        assert np.all(np.isfinite(want)), name
        np.testing.assert_array_equal(actual[name], want, err_msg=name)


@ALL_ENGINES
@pytest.mark.parametrize("empty", [0, 1], ids=["first", "second"])
def test_a_layer_that_keeps_no_block_leaves_its_bias_alone(engine, empty, interpreted):
    operands = draw(FUSED)
    masks = list(operands.masks)
    masks[empty] = mask_of(np.zeros(masks[empty].grid_shape, bool), (32, 32))
    operands = operands._replace(masks=tuple(masks))
    actual = compiled(operands, engine=engine, residual=True)
    assert_conforms(actual, expected(operands, True), "float32")


@BOTH_ENGINES
def test_a_number_that_is_not_finite_is_not_hidden(engine):
    """Training stops on what is not finite, so the panels must not clip it."""
    operands = draw(FUSED)
    for bad in (np.nan, np.inf):
        arrays = {**operands.arrays, "x": operands.arrays["x"].at[1, 2, -1].set(bad)}
        actual = compiled(operands._replace(arrays=arrays), engine=engine, residual=True)
        assert not np.all(np.isfinite(actual["y"][1, 2]))
        assert np.all(np.isfinite(np.delete(np.asarray(actual["y"]).reshape(15, -1), 7, axis=0)))
        assert not np.all(np.isfinite(actual["dw1"]))


@ALL_ENGINES
def test_an_empty_batch_has_no_result_and_gradients_of_zero(engine, interpreted):
    operands = draw(FUSED._replace(batch=(0, 5)))
    actual = compiled(operands, engine=engine, residual=True)
    assert actual["y"].shape == actual["dx"].shape == (0, 5, IN)
    for name in operands.arrays:
        np.testing.assert_array_equal(actual[f"d{name}"], np.zeros_like(operands.arrays[name]))
