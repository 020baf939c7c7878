"""Runs of hidden units: in one block of each layer, and each where it is of use."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import SparseLayer, Weights
from pallas_kernels.triton import hidden


def pair(first: tuple[int, int], second: tuple[int, int]) -> tuple[SparseLayer, SparseLayer]:
    return (
        SparseLayer((64, 256), first, 3, -1, "float32"),
        SparseLayer((256, 128), second, 3, -1, "float32"),
    )


@pytest.mark.parametrize(
    ("first", "second", "largest", "size"),
    [
        ((32, 32), (32, 32), 32, 32),
        ((128, 16), (16, 64), 32, 32),
        ((16, 64), (32, 128), 64, 16),
        ((128, 32), (32, 128), 32, 32),
    ],
)
def test_a_run_lies_in_one_block_of_each_layer(first, second, largest, size):
    runs = hidden.cut(pair(first, second), largest)
    assert runs.size == size
    for run in range(runs.n):
        units = range(run * size, (run + 1) * size)
        (column, in_column), (row, in_row) = runs.column(jnp.int32(run)), runs.row(jnp.int32(run))
        assert {unit // first[0] for unit in units} == {int(column)}
        assert {unit // second[1] for unit in units} == {int(row)}
        assert units[0] % first[0] == int(in_column) * size
        assert units[0] % second[1] == int(in_row) * size
    assert runs.n * size == 256


def test_groups_of_blocks_are_filled_up_with_such_as_are_not_kept():
    grid = jnp.asarray([[1, 0, 1], [0, 1, 1]], bool)
    found = np.asarray(hidden.in_groups(grid, 2), int)
    np.testing.assert_array_equal(found, [[[1, 0], [0, 1]], [[1, 0], [1, 0]]])


def test_runs_of_use_come_first_and_ascending():
    count, order = hidden.chosen_runs(jnp.asarray([[0, 1, 0], [1, 0, 1], [0, 0, 0]], bool), 2)
    np.testing.assert_array_equal(count, [2, 4, 0])
    np.testing.assert_array_equal(order[0, :2], [2, 3])
    np.testing.assert_array_equal(order[1, :4], [0, 1, 4, 5])


def test_the_lists_are_those_of_the_hidden_units():
    layers = pair((64, 32), (64, 128))  # grids of 2x4 and 2x2
    weights = (
        Weights(None, None, jnp.asarray([1, 4, 5], jnp.int32)),
        Weights(None, None, jnp.asarray([0, 1, 3], jnp.int32)),
    )
    assert hidden.grids(layers) == [(2, 4), (2, 2)]
    columns, rows = hidden.lists(weights, layers)
    np.testing.assert_array_equal(columns.start, [0, 1, 3, 3, 3])
    np.testing.assert_array_equal(columns.across, [1, 0, 1])
    np.testing.assert_array_equal(columns.place, [1, 0, 2])
    np.testing.assert_array_equal(rows.start, [0, 2, 3])
    np.testing.assert_array_equal(rows.across, [0, 1, 1])
