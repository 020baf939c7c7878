"""Which two layers go into one function: shapes that fit each other, all of one dtype."""

import dataclasses

import jax.numpy as jnp
import pytest

from sparsemlp.layer import Linear
from sparsemlp.pairs import Operands, are_alike

X = jnp.ones((2, 3, 8))
FIRST, SECOND = Linear(jnp.ones((8, 6)), jnp.ones(6)), Linear(jnp.ones((6, 4)), jnp.ones(4))
SCALES = (jnp.ones(8), jnp.ones(8)), jnp.ones(4)
OPERANDS = Operands.of(FIRST, SECOND, *SCALES)
HALF = jnp.bfloat16


def test_operands_are_those_of_the_layers_and_the_scales_around_them():
    assert OPERANDS.kernel1 is FIRST.kernel
    assert OPERANDS.bias2 is SECOND.bias
    assert [scale.shape for scale in OPERANDS.scales] == [(8,), (8,), (4,)]
    assert Operands.of(FIRST, SECOND, None, None).scales == []


def test_what_fits_is_alike_with_and_without_biases_and_scales():
    assert are_alike(X, OPERANDS)
    without = [dataclasses.replace(layer, bias=None) for layer in (FIRST, SECOND)]
    assert are_alike(X, Operands.of(without[0], without[1], None, None))


@pytest.mark.parametrize(
    "change",
    [
        {"kernel1": jnp.ones((7, 6))},
        {"kernel2": jnp.ones((5, 4))},
        {"kernel1": jnp.ones(8)},
        {"kernel2": jnp.ones((6, 4, 1))},
        {"bias1": jnp.ones(8)},
        {"bias2": jnp.ones((1, 4))},
        {"after": jnp.ones((3, 4))},
        {"after": jnp.ones(1)},
        {"after": jnp.ones(8)},
        {"before": (jnp.ones(8), jnp.ones(1))},
        {"before": (jnp.ones((3, 8)), jnp.ones(8))},
        {"kernel1": jnp.ones((8, 6), HALF)},
        {"bias2": jnp.ones(4, HALF)},
        {"before": (jnp.ones(8), jnp.ones(8, HALF))},
        {"after": jnp.ones(4, HALF)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_shapes_and_dtypes_are_not(change):
    assert not are_alike(X, OPERANDS._replace(**change))


def test_nor_is_x_of_another_width_or_dtype():
    assert not are_alike(X[..., :7], OPERANDS)
    assert not are_alike(X.astype(HALF), OPERANDS)
    assert not are_alike(jnp.float32(1), OPERANDS)
