"""The native MLP of blocks that no vector and no tile fits, and mapped over its operands."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native import needs_native
from native_operands import assert_right, draw_mlp, value_and_gradients

from pallas_kernels.cpu import pair_calls

pytestmark = needs_native


@pytest.mark.parametrize(
    ("blocks", "dtype", "with_bias"),
    [
        (((1, 1), (1, 1)), "float32", True),
        (((1, 8), (8, 1)), "bfloat16", True),
        (((8, 1), (1, 8)), "float32", False),
        (((4, 8), (3, 5)), "float32", True),
        (((3, 5), (24, 40)), "bfloat16", False),
        (((24, 40), (3, 5)), "float32", True),
        (((24, 40), (40, 24)), "bfloat16", True),
    ],
    ids=str,
)
def test_an_mlp_of_small_and_odd_blocks_is_computed_natively_and_right(blocks, dtype, with_bias):
    made = draw_mlp(blocks, dtype, with_bias)
    operands = (made.x, made.dy, made.weights)
    found = jax.jit(functools.partial(value_and_gradients, made))(*operands)
    assert (found["db1"] is None) == (found["db2"] is None) == (not with_bias)
    assert_right(made, found, *operands)


def test_mapping_an_mlp_over_x_alone_is_a_longer_batch():
    """One call computes it: its rows and those of the batch are the same to it."""
    made = draw_mlp(((3, 5), (5, 3)), batch=(4, 9))
    _, _, x, _, weights = made

    def mapped(x: Any, weights: Any) -> Any:
        return jax.vmap(lambda row: pair_calls.mlp(row, weights, made.layers, made.residual))(x)

    found = jax.jit(mapped)(x, weights)
    together = pair_calls.mlp(x, weights, made.layers, made.residual)
    np.testing.assert_array_equal(found, together)
    program = str(jax.make_jaxpr(mapped)(x, weights))
    assert "ffi_call" in program
    assert "scan" not in program


@pytest.mark.parametrize("transform", ["vmap", "nested vmap", "scan"])
def test_mapping_an_mlp_over_all_is_one_after_another(transform):
    stack = (2, 2) if transform == "nested vmap" else (3,)
    made = draw_mlp(((3, 5), (5, 3)), batch=(9,), stack=stack)
    one = functools.partial(value_and_gradients, made)

    def scanned(*operands: Any) -> Any:
        return jax.lax.scan(lambda _, member: (None, one(*member)), None, operands)[1]

    transformed = {"vmap": jax.vmap(one), "nested vmap": jax.vmap(jax.vmap(one)), "scan": scanned}
    operands = (made.x, made.dy, made.weights)
    found = jax.jit(transformed[transform])(*operands)
    for index in np.ndindex(*stack):
        member, outcome = jax.tree.map(lambda a, i=index: a[i], (operands, found))
        assert_right(made, outcome, *member)


def test_gradients_that_are_mapped_over_dy_alone_share_the_layers():
    """As `jax.jacrev` maps them."""
    made = draw_mlp(((3, 5), (5, 3)), batch=(9,))
    dys = jnp.stack([made.dy, 2 * made.dy])

    def of(dy: jax.Array) -> Any:
        return pair_calls.mlp_gradients(made.x, dy, made.weights, made.layers, made.residual)

    found = jax.jit(jax.vmap(of))(dys)
    for index in range(2):
        for got, want in zip(
            jax.tree.leaves(jax.tree.map(lambda a, i=index: a[i], found)),
            jax.tree.leaves(of(dys[index])),
            strict=True,
        ):
            np.testing.assert_array_equal(got, want)
