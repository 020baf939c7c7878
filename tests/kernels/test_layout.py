"""From ids of kept blocks to a grid and to a mask, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import layout
from pallas_kernels.layout import (
    dense_mask,
    insertion_points,
    kept_grid,
    list_columns,
    list_rows,
    spread_blocks,
    take_blocks,
)

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


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_lists_name_every_kept_block_once_line_by_line(ids, by):
    for kept in ids:
        listed = list_rows if by == "rows" else list_columns
        lists = (np.asarray(a) for a in listed(jnp.asarray(kept), GRID))
        start, line_of, across, place, order = lists
        n_lines = GRID[0] if by == "rows" else GRID[1]
        assert (start[0], start[-1], len(start)) == (0, len(kept), n_lines + 1)
        for line in range(n_lines):
            mine = slice(start[line], start[line + 1])
            assert (line_of[mine] == line).all()
            blocks = [(line, other) if by == "rows" else (other, line) for other in across[mine]]
            flat = [row * GRID[1] + column for row, column in blocks]
            np.testing.assert_array_equal(kept[place[mine]], flat)
            assert flat == sorted(flat)
        np.testing.assert_array_equal(np.sort(place), np.arange(len(kept)))
        lengths = np.diff(start)[order]
        assert list(lengths) == sorted(lengths, reverse=True)
        np.testing.assert_array_equal(np.sort(order), np.arange(n_lines))


def test_columns_that_are_not_wanted_have_no_entries_and_the_others_all_of_theirs(ids):
    wanted = jnp.arange(GRID[1]) % 2 == 0
    for kept in ids:
        all_columns = list_columns(jnp.asarray(kept), GRID)
        some = list_columns(jnp.asarray(kept), GRID, wanted)
        assert some.across.size == kept.size
        for line in range(GRID[1]):
            every = all_columns.across[all_columns.start[line] : all_columns.start[line + 1]]
            mine = some.across[some.start[line] : some.start[line + 1]]
            np.testing.assert_array_equal(mine, every if wanted[line] else [])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("most", [0, 2**26])
def test_insertion_points_are_those_of_numpy_however_they_are_found(monkeypatch, side, most):
    monkeypatch.setattr(layout, "_FEW_PAIRS", most)
    rng, n_values = np.random.default_rng(0), 3000
    ascending = np.sort(rng.integers(0, 500, 1000)).astype(np.int32)
    values = rng.integers(-2, 510, n_values).astype(np.int32)
    found = insertion_points(jnp.asarray(ascending), jnp.asarray(values), side)
    np.testing.assert_array_equal(found, np.searchsorted(ascending, values, side))
    assert found.dtype == jnp.int32


@pytest.mark.parametrize("listed", [list_rows, list_columns])
def test_the_lists_of_a_layer_need_no_loop(listed):
    """4096x16384 in blocks of 32x32 at 0.8; a loop is a row of kernel launches on a GPU."""
    kept = jax.ShapeDtypeStruct((128 * 512 // 5,), jnp.int32)
    text = jax.jit(lambda ids: listed(ids, (128, 512))).lower(kept).as_text()
    assert "stablehlo.while" not in text


def test_lists_of_a_full_and_of_a_single_row_have_empty_lines_where_nothing_is_kept():
    kept = jnp.arange(5, 10, dtype=jnp.int32)
    np.testing.assert_array_equal(list_rows(kept, GRID).start, [0, 0, 5, 5])
    np.testing.assert_array_equal(list_rows(kept, GRID).order, [1, 0, 2])
    np.testing.assert_array_equal(list_columns(kept, GRID).start, np.arange(6))
    np.testing.assert_array_equal(list_columns(kept, GRID).across, [1] * 5)
