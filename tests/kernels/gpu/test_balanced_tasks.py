"""What the programs of a balanced gradient compute."""

from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.lists import list_alike
from pallas_kernels.mosaic.balanced_groups import Groups, table_of
from pallas_kernels.mosaic.balanced_shares import Plan, shares_of
from pallas_kernels.mosaic.balanced_tasks import Columns, Tasks, group_of_column
from pallas_kernels.mosaic.warpgroup import Table

GRID = (4, 5)
"""Of blocks: the second row has none, nor have two columns."""
IDS = np.asarray([0, 2, 3, 10, 12, 13, 17], np.int32)
N_STEPS = 5


@pytest.mark.parametrize("in_rounds", [True, False])
@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("n_together", [1, 2])
@pytest.mark.parametrize("n_programs", [1, 4])
def test_every_step_of_every_block_and_column_is_computed_once(
    by_rows, n_together, n_programs, in_rounds
):
    blocks = list_alike(jnp.asarray(IDS[None]), GRID)[0]
    lists, columns = blocks.rows if by_rows else blocks.columns, blocks.columns
    which = jnp.int32(0)
    start, across = Table(lists.start, which), Table(lists.across, which)
    of_bias = Columns(*(Table(a, which) for a in (columns.start, columns.across, columns.order)))
    table = table_of(blocks, n_together, by_rows=by_rows, with_bias=True)
    plan = Plan(N_STEPS, n_programs, GRID[not by_rows], n_together, in_rounds)
    shares = shares_of(plan, Groups(Table(table, which), start, plan.beside))
    kept: Counter[tuple[int, int, int]] = Counter()
    biases: Counter[tuple[int, int]] = Counter()
    for program in range(n_programs):
        number = jnp.int32(program)
        tasks = Tasks(shares, number, shares.span(number), by_rows, across, of_bias)
        for turn in range(int(tasks.n_tasks())):
            task = tasks.task(jnp.int32(turn))
            steps = range(int(task.part.first), int(task.part.last))
            for index in map(jnp.int32, range(n_together)):
                is_kept = bool(index < task.group.length)
                assert bool(tasks.has_block(task, int(index))) or not is_kept
                place = int(tasks.block(task, index)), int(task.group.line)
                if is_kept:
                    assert tasks.has_shared(task)
                    row, column = place[::-1] if by_rows else place
                    assert int(tasks.column(task, index)) == column
                    kept.update((row, column, step) for step in steps)
                if tasks.adds_bias(task, index):
                    # It is multiplied with what is loaded: dy of this column.
                    assert tasks.has_block(task, int(index)) if by_rows else tasks.has_shared(task)
                    column = place[0] if by_rows else place[1]
                    assert int(tasks.column(task, index)) == column
                    biases.update((column, step) for step in steps)
    wanted = {(*divmod(int(i), GRID[1]), step) for i in IDS for step in range(N_STEPS)}
    assert kept == dict.fromkeys(wanted, 1)
    wanted = {(column, step) for column in range(GRID[1]) for step in range(N_STEPS)}
    assert biases == dict.fromkeys(wanted, 1)


@pytest.mark.parametrize("in_rounds", [True, False])
@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("n_programs", [2, 5, 132])
def test_a_column_is_found_with_the_group_that_its_db_is_added_up_with(
    by_rows, n_programs, in_rounds
):
    blocks, which = list_alike(jnp.asarray(IDS[None]), GRID)[0], jnp.int32(0)
    lists, columns = blocks.rows if by_rows else blocks.columns, blocks.columns
    start, across = Table(lists.start, which), Table(lists.across, which)
    of_bias = Columns(*(Table(a, which) for a in (columns.start, columns.across, columns.order)))
    table = table_of(blocks, 2, by_rows=by_rows, with_bias=True)
    plan = Plan(N_STEPS, n_programs, GRID[not by_rows], 2, in_rounds)
    shares = shares_of(plan, Groups(Table(table, which), start, plan.beside))
    shares_of_column: dict[int, list[int]] = {column: [] for column in range(GRID[1])}
    groups: dict[int, set[int]] = {column: set() for column in range(GRID[1])}
    for program in range(n_programs):
        number = jnp.int32(program)
        tasks = Tasks(shares, number, shares.span(number), by_rows, across, of_bias)
        for turn in range(int(tasks.n_tasks())):
            task = tasks.task(jnp.int32(turn))
            for index in map(jnp.int32, range(2)):
                if tasks.adds_bias(task, index):
                    column = int(tasks.column(task, index))
                    shares_of_column[column].append(int(task.part.share))
                    groups[column].add(int(task.part.group))
    before = Table(lists.before, which)
    for turn in map(jnp.int32, range(GRID[1])):
        column, counted = group_of_column(turn, shares, of_bias, before, by_rows=by_rows)
        assert groups.pop(int(column)) == {int(counted.group)}
        # Every share is written, each once.
        assert shares_of_column[int(column)] == list(range(int(shares.n_shares(counted))))
    assert not groups
