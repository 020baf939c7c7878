"""From ids of kept blocks to a grid and to a mask, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.layout import (
    dense_mask,
    kept_grid,
    spread_blocks,
    spread_gradient,
    take_blocks,
)
from pallas_kernels.lists import listed

GRID = (3, 5)


@pytest.fixture(scope="module")
def ids() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = (1, 4, 14, 15)
    return [np.sort(rng.choice(15, size, replace=False)).astype(np.int32) for size in sizes]


def test_the_grid_marks_the_kept_ids_and_no_other(ids):
    for kept in ids:
        grid = np.asarray(kept_grid(jnp.asarray(kept), GRID))
        assert grid.shape == GRID
        np.testing.assert_array_equal(np.flatnonzero(grid), kept)


def test_wide_integers_change_no_grid(ids):
    with jax.enable_x64(True):
        for kept in ids:
            grid = np.asarray(kept_grid(jnp.asarray(kept), GRID))
            np.testing.assert_array_equal(np.flatnonzero(grid), kept)


def test_the_grid_of_many_blocks_is_made_in_another_way_and_is_the_same():
    kept = np.sort(np.random.default_rng(0).choice(2000, 400, replace=False)).astype(np.int32)
    grid = np.asarray(kept_grid(jnp.asarray(kept), (40, 50)))
    assert grid.shape == (40, 50)
    np.testing.assert_array_equal(np.flatnonzero(grid), kept)
    assert not kept_grid(jnp.zeros(0, jnp.int32), GRID).any()


@pytest.mark.parametrize("block", [(1, 1), (4, 1), (1, 4), (2, 3)])
def test_the_mask_is_the_kronecker_product_of_the_grid_and_a_tile(ids, block):
    rows, cols = block
    shape = (GRID[0] * cols, GRID[1] * rows)
    for kept in ids:
        grid = np.zeros(GRID, bool)
        grid.flat[kept] = True
        mask = np.asarray(dense_mask(jnp.asarray(kept), shape, block))
        np.testing.assert_array_equal(mask, np.kron(grid, np.ones((cols, rows), bool)))


def test_one_program_lays_out_every_set_of_equal_size():
    traces = []

    @jax.jit
    def lay_out(kept: jax.Array) -> jax.Array:
        traces.append(kept)
        return dense_mask(kept, (6, 10), (2, 2))

    masks = [lay_out(jnp.array(kept, jnp.int32)) for kept in ([0, 7], [3, 14], [13, 14])]
    assert len(traces) == 1
    assert len({np.asarray(mask).tobytes() for mask in masks}) == 3
    assert [int(mask.sum()) for mask in masks] == [8, 8, 8]


def test_taken_blocks_are_slices_of_the_matrix_and_spreading_puts_them_back():
    height, width = 2, 3
    matrix = np.random.default_rng(0).normal(size=(6, 12)).astype(np.float32)
    ids = np.array([0, 3, 6, 11], np.int32)
    taken = np.asarray(take_blocks(jnp.asarray(matrix), jnp.asarray(ids), (height, width)))
    expected = np.zeros_like(matrix)
    for block, (i, j) in zip(taken, (divmod(int(n), 4) for n in ids), strict=True):
        place = np.s_[i * height : (i + 1) * height, j * width : (j + 1) * width]
        np.testing.assert_array_equal(block, matrix[place])
        expected[place] = matrix[place]
    spread = spread_blocks(jnp.asarray(taken), jnp.asarray(ids), matrix.shape)
    np.testing.assert_array_equal(spread, expected)


@pytest.mark.parametrize("with_lists", [False, True])
@pytest.mark.parametrize("placed", [False, True])
def test_a_gradient_has_its_kept_blocks_where_they_lie_and_zeros_elsewhere(ids, with_lists, placed):
    cols, rows = 2, 3
    rng = np.random.default_rng(0)
    for kept in ids:
        blocks = rng.normal(size=(len(kept) + 2, cols, rows)).astype(np.float32)
        place = rng.permutation(len(blocks))[: len(kept)] if placed else np.arange(len(kept))
        blocks[np.setdiff1d(np.arange(len(blocks)), place)] = np.nan
        expected = np.zeros((GRID[0] * cols, GRID[1] * rows), np.float32)
        for block, (i, j) in zip(
            blocks[place], (divmod(int(n), GRID[1]) for n in kept), strict=True
        ):
            expected[i * cols : (i + 1) * cols, j * rows : (j + 1) * rows] = block
        of = jnp.asarray(kept)
        found = spread_gradient(
            jnp.asarray(blocks),
            listed(of, GRID) if with_lists else of,
            expected.shape,
            jnp.asarray(place, jnp.int32) if placed else None,
        )
        np.testing.assert_array_equal(found, expected)


def test_a_gradient_of_no_blocks_is_zero():
    found = spread_gradient(jnp.ones((0, 2, 3)), jnp.zeros(0, jnp.int32), (6, 15))
    np.testing.assert_array_equal(found, np.zeros((6, 15)))


def test_with_lists_the_mask_is_that_of_the_ids(ids):
    kept = jnp.asarray(ids[1])
    blocks = listed(kept, GRID)
    np.testing.assert_array_equal(kept_grid(blocks, GRID), kept_grid(kept, GRID))
    mask = dense_mask(blocks, (6, 15), (3, 2))
    np.testing.assert_array_equal(mask, dense_mask(kept, (6, 15), (3, 2)))
