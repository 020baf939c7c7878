"""A native kernel as a function: which `vmap` is a longer batch, which one call after another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native import needs_native

from pallas_kernels import SparseLayer
from pallas_kernels.cpu.kernel_calls import at_once, block_options, or_empty, over_rows

pytestmark = needs_native
PRUNED = (("n", np.int64(1)), ("m", np.int64(2)), ("positions", np.int64(0)))
"""`dx = dy' W^T` of rows, one of two neighbours of dy."""


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def by_definition(dy: jax.Array, kernel: jax.Array) -> np.ndarray:
    pairs = np.asarray(dy).reshape(*dy.shape[:-1], -1, 2)
    kept = np.where(abs(pairs) == abs(pairs).max(axis=-1, keepdims=True), pairs, 0)
    return kept.reshape(dy.shape) @ np.swapaxes(np.asarray(kernel), -1, -2)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_kernel_over_rows_takes_mapped_axes_as_more_rows(depth):
    call = over_rows("sparsemlp_pruned", (5, 3), PRUNED)

    def mapped(dy: jax.Array, kernel: jax.Array) -> jax.Array:
        return call(dy, kernel)[0]

    for _ in range(depth):
        mapped = jax.vmap(mapped, in_axes=(0, None))
    dy, kernel = draw(*(2, 4)[:depth], 5, 6), draw(3, 6)
    np.testing.assert_allclose(mapped(dy, kernel), by_definition(dy, kernel), rtol=1e-5, atol=1e-6)
    assert "scan" not in str(jax.make_jaxpr(mapped)(dy, kernel))


def test_mapped_over_another_operand_it_is_called_for_each_member():
    call = over_rows("sparsemlp_pruned", (5, 3), PRUNED)
    dy, kernels = draw(5, 6), draw(4, 3, 6)
    mapped = jax.vmap(lambda dy, kernel: call(dy, kernel)[0], in_axes=(None, 0))
    np.testing.assert_allclose(
        mapped(dy, kernels), by_definition(dy, kernels), rtol=1e-5, atol=1e-6
    )
    assert "scan" in str(jax.make_jaxpr(mapped)(dy, kernels))


def test_a_kernel_that_needs_all_at_once_is_called_for_each_member():
    options = (("axis", np.int64(-1)),)
    call = at_once(
        "sparsemlp_largest_blocks",
        ((1, 2, 3), (1,)),
        options,
        (jnp.dtype("float32"), jnp.dtype("int32")),
    )
    x = draw(4, 6, 6)
    blocks, ids = jax.vmap(lambda a: tuple(call(a)))(x)
    norms = np.square(np.asarray(x).reshape(4, 3, 2, 2, 3)).sum(axis=(2, 4)).reshape(4, -1)
    np.testing.assert_array_equal(ids[:, 0], norms.argmax(axis=1))
    assert blocks.shape == (4, 1, 2, 3)


def test_functions_are_made_once_for_what_they_do():
    assert over_rows("sparsemlp_pruned", (5, 3), PRUNED) is over_rows(
        "sparsemlp_pruned", (5, 3), PRUNED
    )


def test_what_is_absent_is_an_empty_operand_and_blocks_are_attributes():
    x = draw(2, 3)
    assert or_empty(None, x).shape == (0,)
    assert or_empty(x, x) is x
    assert block_options(SparseLayer((8, 6), (3, 2), 1, -1, "float32")) == {"rows": 3, "cols": 2}
