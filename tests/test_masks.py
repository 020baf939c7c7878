"""A mask in its three forms: ids, block grid, one boolean a weight."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.lists import list_alike
from sparsemlp.errors import InputError
from sparsemlp.masks import BlockMask, GridMask

CASES = [
    ((6, 8), (2, 3), [0, 3, 7]),
    ((6, 8), (4, 1), [1, 2, 11]),
    ((6, 8), (1, 6), [5]),
    ((4, 4), (1, 1), [0, 5, 10, 15]),
    ((4, 4), (4, 4), [0]),
]


@pytest.fixture(params=CASES, ids=str)
def mask(request) -> BlockMask:
    kernel_shape, block, kept = request.param
    return BlockMask(jnp.array(kept, jnp.int32), kernel_shape, block)


def test_the_grid_is_true_at_the_kept_ids_counted_row_by_row(mask):
    grid = np.asarray(mask.grid())
    rows, cols = mask.block
    assert grid.dtype == bool
    assert grid.shape == (mask.kernel_shape[0] // cols, mask.kernel_shape[1] // rows)
    np.testing.assert_array_equal(np.flatnonzero(grid), mask.kept)


def test_the_dense_mask_repeats_the_grid_over_the_tiles(mask):
    rows, cols = mask.block
    dense = np.asarray(mask.dense())
    assert dense.dtype == bool
    np.testing.assert_array_equal(dense, np.kron(mask.grid(), np.ones((cols, rows), bool)))


def test_the_density_is_the_kept_share_of_the_weights(mask):
    assert mask.density == np.asarray(mask.dense()).mean()
    assert mask.n_kept == len(mask.kept)
    assert mask.n_kept / mask.n_blocks == mask.density


def test_a_tall_block_spans_outputs_and_a_wide_one_inputs():
    tall = BlockMask(jnp.array([1], jnp.int32), (3, 8), (4, 1)).dense()
    wide = BlockMask(jnp.array([1], jnp.int32), (8, 3), (1, 4)).dense()
    np.testing.assert_array_equal(np.argwhere(tall), [[0, 4], [0, 5], [0, 6], [0, 7]])
    np.testing.assert_array_equal(np.argwhere(wide), [[0, 1], [1, 1], [2, 1], [3, 1]])


def test_positions_are_data_and_everything_else_is_static():
    traces = []

    @jax.jit
    def dense(mask: BlockMask) -> jax.Array:
        traces.append(mask)
        return mask.dense()

    first = BlockMask(jnp.array([0, 1], jnp.int32), (4, 4), (2, 2))
    second = BlockMask(jnp.array([1, 3], jnp.int32), (4, 4), (2, 2))
    assert not np.array_equal(dense(first), dense(second))
    assert len(traces) == 1


def test_a_mask_passes_through_tree_functions_whole():
    mask = BlockMask(jnp.array([0, 3], jnp.int32), (4, 6), (3, 2))
    leaves, tree = jax.tree.flatten(mask)
    assert len(leaves) == 1
    back = jax.tree.unflatten(tree, leaves)
    assert (back.kernel_shape, back.block) == (mask.kernel_shape, mask.block)
    np.testing.assert_array_equal(back.kept, mask.kept)


def test_masks_of_stacked_kernels_are_mapped_over():
    stacked = BlockMask(jnp.array([[0, 1], [2, 3]], jnp.int32), (4, 4), (2, 2))
    assert stacked.n_kept == 2
    assert stacked.density == 0.5
    dense = jax.vmap(BlockMask.dense)(stacked)
    for kept, one in zip(stacked.kept, dense, strict=True):
        np.testing.assert_array_equal(one, BlockMask(kept, (4, 4), (2, 2)).dense())


def test_a_mask_whose_block_does_not_divide_its_kernel_is_an_error():
    with pytest.raises(InputError, match=r"block 3x2 does not divide kernel.*out 8 % 3 != 0"):
        BlockMask(jnp.array([0], jnp.int32), (4, 8), (3, 2)).grid()


def as_grid(mask: BlockMask) -> GridMask:
    return GridMask(mask.grid(), mask.kernel_shape, mask.block)


def test_a_grid_mask_is_the_block_mask_of_the_same_blocks(mask):
    grid = as_grid(mask)
    np.testing.assert_array_equal(grid.grid(), mask.grid())
    np.testing.assert_array_equal(grid.dense(), mask.dense())
    assert (grid.grid_shape, grid.n_blocks) == (mask.grid_shape, mask.n_blocks)
    assert int(grid.n_kept) == mask.n_kept
    assert float(grid.density) == pytest.approx(mask.density, rel=1e-6)


def test_the_number_of_kept_blocks_of_a_grid_mask_is_data():
    traces = []

    @jax.jit
    def n_kept(mask: GridMask) -> jax.Array:
        traces.append(mask)
        return mask.n_kept

    grids = [np.arange(4).reshape(2, 2) < k for k in range(5)]
    found = [int(n_kept(GridMask(jnp.asarray(grid), (4, 4), (2, 2)))) for grid in grids]
    assert found == [0, 1, 2, 3, 4]
    assert len(traces) == 1


def test_masks_of_different_ratios_are_stacked():
    masks = [as_grid(BlockMask(jnp.arange(k, dtype=jnp.int32), (4, 4), (2, 2))) for k in (1, 3)]
    stacked = jax.tree.map(lambda *grids: jnp.stack(grids), *masks)
    dense = jax.vmap(GridMask.dense)(stacked)
    for one, mask in zip(dense, masks, strict=True):
        np.testing.assert_array_equal(one, mask.dense())


def test_lists_stay_with_the_blocks_that_they_are_of():
    mask = BlockMask(jnp.array([0, 3], jnp.int32), (8, 8), (4, 4))
    listed = mask.with_lists(list_alike(mask.kept[None], (2, 2))[0])
    leaves, structure = jax.tree.flatten(listed)
    again = jax.tree.unflatten(structure, leaves)
    assert again.lists is not None
    np.testing.assert_array_equal(again.grid(), mask.grid())
    other = dataclasses.replace(listed, kept=jnp.array([1, 2], jnp.int32))
    assert other.lists is None
    np.testing.assert_array_equal(np.flatnonzero(other.grid()), [1, 2])
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(mask)]
    assert names == [".kept"]
