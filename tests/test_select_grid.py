"""Selection where k is data: the blocks of `select_blocks`, one program for every k."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from block_norms import numpy_scores

from sparsemlp.blocks import n_kept_blocks
from sparsemlp.errors import InputError
from sparsemlp.selection import SCORES, select_blocks, select_grid


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("block", [(2, 2), (1, 4)], ids=str)
def test_a_grid_keeps_the_blocks_of_select_blocks_ties_included(block, score):
    """Weights of three values make most scores equal."""
    kernel = jnp.asarray(np.random.default_rng(0).integers(-1, 2, (8, 16)), jnp.float32)
    for ratio in (0.25, 0.6):
        expected = select_blocks(kernel, block, ratio, score)
        found = select_grid(kernel, block, n_kept_blocks(32, ratio), score)
        np.testing.assert_array_equal(found.grid(), expected.grid())


def test_one_program_serves_every_k_and_equal_scores_keep_the_lower_index():
    kernel = jnp.asarray(np.random.default_rng(1).integers(-1, 2, (8, 16)), jnp.float32)
    traces = []

    @jax.jit
    def grid_of(k):
        traces.append(k)
        return select_grid(kernel, (2, 4), k, "l1").grid()

    order = np.argsort(-numpy_scores(np.asarray(kernel), (2, 4), "l1"), kind="stable")
    for k in range(17):
        np.testing.assert_array_equal(np.flatnonzero(grid_of(k)), sorted(order[:k]))
    assert len(traces) == 1


def test_a_grid_ranks_what_is_not_finite_as_select_blocks_does():
    kernel = jnp.asarray([[1.0, jnp.nan, 3.0, -jnp.inf], [jnp.inf, 3.0, -jnp.nan, 0.0]])
    for k in (2, 4, 7):
        expected = select_blocks(kernel, (1, 1), 1 - k / 8)
        assert expected.n_kept == k
        np.testing.assert_array_equal(select_grid(kernel, (1, 1), k).grid(), expected.grid())


def test_grids_of_a_stack_of_kernels_are_those_of_each():
    kernels = jax.random.normal(jax.random.key(0), (3, 8, 16))
    k = jnp.array([1, 5, 8], jnp.int32)
    grids = jax.vmap(lambda kernel, k: select_grid(kernel, (4, 4), k).grid())(kernels, k)
    for kernel, n_kept, grid in zip(kernels, k, grids, strict=True):
        np.testing.assert_array_equal(
            grid, select_blocks(kernel, (4, 4), 1 - float(n_kept) / 8).grid()
        )


def test_a_grid_of_a_block_that_does_not_divide_its_kernel_is_an_error():
    with pytest.raises(InputError, match=r"block 3x2 does not divide layer"):
        select_grid(jnp.ones((4, 8)), (3, 2), 1, name="layer")
