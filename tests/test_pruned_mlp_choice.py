"""Which layers with pruned activations and gradients are one kernel, and what is refused."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native import needs_native
from pruned_mlp_cases import (
    BLOCKS,
    HIDDEN,
    IN,
    Case,
    assert_alike,
    gradient_of,
    is_fused,
    value_and_gradients,
)

from sparsemlp import (
    ActivationPooling,
    ActivationPruning,
    GradientPruning,
    GridMask,
    InputError,
    select_blocks,
)
from sparsemlp.layer import Linear
from sparsemlp.mlp import sparse_mlp

pytestmark = needs_native


@pytest.mark.parametrize(
    "change",
    [
        {"backward": "dense"},
        {"activation": ActivationPruning((8, 8), 0.7, "l1")},
        {"activation": ActivationPruning((8, 2), 0.7)},
        {"activation": ActivationPruning((96, 8), 0.7), "batch": (6, 16)},
        {"activation": ActivationPruning((8, 8), 0.0)},
        {"activation": ActivationPooling((1, 1))},
        {"activation": None, "gradient": GradientPruning(4, 4)},
        {"block": (4, 8)},
    ],
    ids=str,
)
def test_other_rules_go_step_by_step(change):
    case = dataclasses.replace(Case(), **change)
    assert not is_fused(case)
    arrays, dy = case.draw(), gradient_of(case)
    found = value_and_gradients(arrays, dy, case, "cpu")
    assert_alike(found, value_and_gradients(arrays, dy, case, "reference"), 2e-5)


def test_masks_whose_size_is_data_and_draws_at_random_go_step_by_step():
    arrays = Case().draw()
    first, second = Case().layers(arrays)
    assert first.mask is not None
    grid = GridMask(first.mask.grid(), first.mask.kernel_shape, first.mask.block)
    random = GradientPruning(2, 4, "random")
    for changed, engine in (
        ({"mask": grid}, "auto"),
        ({"gradient": random, "rng": jax.random.key(0)}, "cpu"),
    ):
        one = dataclasses.replace(first, **changed)
        call = functools.partial(sparse_mlp, first=one, second=second, engine=engine)
        assert "sparsemlp_pruned_mlp" not in str(jax.make_jaxpr(call)(arrays["x"]))


def test_blocks_that_do_not_divide_are_refused_as_by_one_layer():
    case = Case(ActivationPruning((5, 8), 0.5))
    with pytest.raises(InputError, match="activation block 5x8 does not divide"):
        value_and_gradients(case.draw(), gradient_of(case), case, "cpu")


def takes(
    n_in: int, ratio: float, backward: Any = "masked", n_samples: int = 64, **rule: Any
) -> bool:
    """Whether `auto` does, of n_in to 4 n_in features and back and 32x32 blocks of both kernels."""

    def call(x: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
        first, second = (
            Linear(w, None, select_blocks(w, (32, 32), ratio), backward, **rule) for w in (w1, w2)
        )
        return sparse_mlp(x, first, second)

    shapes = ((n_samples, 64, n_in), (n_in, 4 * n_in), (4 * n_in, n_in))
    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return "sparsemlp_pruned_mlp" in str(jax.make_jaxpr(call)(*operands))


def test_auto_takes_it_where_little_of_both_kernels_is_kept():
    assert takes(64, 0.0, activation=BLOCKS)
    assert takes(64, 0.8, "straight_through", activation=BLOCKS)
    assert not takes(384, 0.0, activation=BLOCKS)
    assert takes(384, 0.0, n_samples=128, activation=BLOCKS)
    assert takes(384, 0.8, activation=BLOCKS)
    assert not takes(768, 0.0, activation=BLOCKS)
    assert not takes(384, 0.8, "straight_through", activation=BLOCKS)
    assert not takes(768, 0.5, activation=BLOCKS)
    assert takes(768, 0.8, activation=BLOCKS)


def test_with_pruned_gradients_alone_it_takes_it_where_still_less_is():
    gradient = GradientPruning(2, 4)
    assert takes(64, 0.0, gradient=gradient)
    assert takes(384, 0.8, gradient=gradient)
    assert not takes(384, 0.5, gradient=gradient)


WRONG = {
    "an array as a mask": {"mask": np.ones((HIDDEN, IN), bool)},
    "a string as an activation rule": {"activation": "8x8:0.5"},
    "a gradient rule for the activation": {"activation": GradientPruning(2, 4)},
    "a string as a gradient rule": {"gradient": "2:4"},
    "an activation rule for the gradient": {"gradient": BLOCKS},
    "another backward": {"backward": "foo"},
    "a mask of another kernel": {"mask": select_blocks(jnp.ones((IN, HIDDEN)), (16, 8), 0.5)},
    "a whole mask of another kernel": {"mask": select_blocks(jnp.ones((64, 64)), (16, 8), 0.0)},
}


@pytest.mark.parametrize("engine", ["auto", "cpu", "reference"])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_the_second_layer_is_said(wrong, engine, unchecked):
    arrays = Case().draw()
    first, second = (dataclasses.replace(layer, mask=None) for layer in Case().layers(arrays))
    with pytest.raises(InputError):
        sparse_mlp(arrays["x"], first, dataclasses.replace(second, **WRONG[wrong]), engine=engine)


@pytest.mark.parametrize("length", [1, IN // 2])
def test_scales_of_another_length_are_left_to_the_layers(length, unchecked):
    arrays = Case().draw()
    first, second = Case().layers(arrays)
    scales = (jnp.ones(length), jnp.zeros(length))
    call = functools.partial(sparse_mlp, arrays["x"], first, second, engine="cpu")
    if length == 1:
        np.testing.assert_allclose(
            call(before=scales, after=scales[0]), call(), rtol=1e-5, atol=1e-5
        )
        return
    with pytest.raises((ValueError, TypeError), match=r"float32\[16|16,"):
        call(before=scales)
    with pytest.raises((ValueError, TypeError), match=r"float32\[16|16,"):
        call(after=scales[0])


def test_numbers_of_numpy_are_taken_as_those_of_jax():
    arrays = Case().draw()
    wide = {name: np.asarray(a, np.float64) for name, a in arrays.items()}
    first, second = Case().layers(arrays)
    one = dataclasses.replace(first, kernel=wide["w1"], bias=wide["b1"])
    other = dataclasses.replace(second, kernel=wide["w2"], bias=wide["b2"])
    found = sparse_mlp(jnp.asarray(arrays["x"]), one, other, engine="cpu")
    np.testing.assert_array_equal(found, sparse_mlp(arrays["x"], first, second, engine="cpu"))
