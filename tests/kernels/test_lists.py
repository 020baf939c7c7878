"""The kept blocks line by line, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_layout

from pallas_kernels import lists
from pallas_kernels.lists import (
    before_each,
    ids_of,
    insertion_points,
    list_alike,
    list_columns,
    list_rows,
    listed,
)

GRID = test_layout.GRID
ids = test_layout.ids


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_lists_name_every_kept_block_once_line_by_line(ids, by):
    for kept in ids:
        make = list_rows if by == "rows" else list_columns
        lists = (np.asarray(a) for a in make(jnp.asarray(kept), GRID))
        start, across, place, order, before = lists
        n_lines = GRID[0] if by == "rows" else GRID[1]
        assert (start[0], start[-1], len(start)) == (0, len(kept), n_lines + 1)
        for line in range(n_lines):
            mine = slice(start[line], start[line + 1])
            blocks = [(line, other) if by == "rows" else (other, line) for other in across[mine]]
            flat = [row * GRID[1] + column for row, column in blocks]
            np.testing.assert_array_equal(kept[place[mine]], flat)
            assert flat == sorted(flat)
        np.testing.assert_array_equal(np.sort(place), np.arange(len(kept)))
        lengths = np.diff(start)[order]
        assert list(lengths) == sorted(lengths, reverse=True)
        np.testing.assert_array_equal(np.sort(order), np.arange(n_lines))
        grid = np.zeros(GRID, bool)
        grid.flat[kept] = True
        lines = grid if by == "rows" else grid.T
        np.testing.assert_array_equal(before, [0, *np.cumsum(lines)])
        np.testing.assert_array_equal(make(jnp.asarray(kept), GRID).grid(), lines)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("most", [0, 2**26])
def test_insertion_points_are_those_of_numpy_however_they_are_found(monkeypatch, side, most):
    monkeypatch.setattr(lists, "_FEW_PAIRS", most)
    rng, n_values = np.random.default_rng(0), 3000
    ascending = np.sort(rng.integers(0, 500, 1000)).astype(np.int32)
    values = rng.integers(-2, 510, n_values).astype(np.int32)
    found = insertion_points(jnp.asarray(ascending), jnp.asarray(values), side)
    np.testing.assert_array_equal(found, np.searchsorted(ascending, values, side))
    assert found.dtype == jnp.int32


@pytest.mark.parametrize("make", [list_rows, list_columns])
def test_the_lists_of_a_layer_need_no_loop(make):
    """4096x16384 in blocks of 32x32 at 0.8; a loop is a row of kernel launches on a GPU."""
    kept = jax.ShapeDtypeStruct((128 * 512 // 5,), jnp.int32)
    text = jax.jit(lambda ids: make(ids, (128, 512))).lower(kept).as_text()
    assert "stablehlo.while" not in text


def test_lists_of_a_full_and_of_a_single_row_have_empty_lines_where_nothing_is_kept():
    kept = jnp.arange(5, 10, dtype=jnp.int32)
    np.testing.assert_array_equal(list_rows(kept, GRID).start, [0, 0, 5, 5])
    np.testing.assert_array_equal(list_rows(kept, GRID).order, [1, 0, 2])
    np.testing.assert_array_equal(list_columns(kept, GRID).start, np.arange(6))
    np.testing.assert_array_equal(list_columns(kept, GRID).across, [1] * 5)


@pytest.mark.parametrize("most", [0, 2**26])
def test_what_lies_before_each_block_is_counted_in_either_way(monkeypatch, ids, most):
    monkeypatch.setattr(lists, "_FEW_PAIRS", most)
    for kept in ids:
        found = before_each(jnp.asarray(kept), 15)
        np.testing.assert_array_equal(found, np.searchsorted(kept, np.arange(16)))
        assert found.dtype == jnp.int32


def test_kernels_that_are_alike_have_their_own_lists_made_together():
    rng = np.random.default_rng(0)
    kept = np.stack([np.sort(rng.choice(15, 6, replace=False)) for _ in range(3)]).astype(np.int32)
    of_all = list_alike(jnp.asarray(kept), GRID)
    assert len(of_all) == 3
    for own, blocks in zip(kept, of_all, strict=True):
        assert blocks.size == 6
        np.testing.assert_array_equal(ids_of(blocks), own)
        for make in (list_rows, list_columns):
            for found, expected in zip(
                make(blocks, GRID), make(jnp.asarray(own), GRID), strict=True
            ):
                np.testing.assert_array_equal(found, expected)
        assert listed(blocks, GRID) is blocks


def test_wide_integers_change_no_list(ids):
    for make in (list_rows, list_columns):
        for kept in ids:
            expected = make(jnp.asarray(kept), GRID)
            with jax.enable_x64(True):
                found = make(jnp.asarray(kept), GRID)
                for a, b in zip(found, expected, strict=True):
                    assert a.dtype == jnp.int32
                    np.testing.assert_array_equal(a, b)
