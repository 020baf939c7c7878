"""All steps of a gradient, shared out evenly among programs."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import SparseLayer
from pallas_kernels.lists import list_alike
from pallas_kernels.mosaic.balanced_shares import (
    MOST_SHARES,
    Plan,
    shares_of,
    table_of,
)
from pallas_kernels.mosaic.warpgroup import Table

GRID = (6, 5)
"""Of blocks: two kernels keep some of its second row, none of its fourth column."""
IDS = np.asarray([[5, 6, 7, 9, 10, 20, 27], [0, 5, 6, 11, 12, 16, 29]], np.int32)


def blocks_of(kernel: int):
    return list_alike(jnp.asarray(IDS), GRID)[kernel]


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("n_together", [1, 2, 4])
@pytest.mark.parametrize("with_bias", [True, False])
def test_the_table_counts_groups_and_columns_without_any(by_rows, n_together, with_bias):
    table = np.asarray(table_of(blocks_of(0), n_together, by_rows=by_rows, with_bias=with_bias))
    for ids, found in zip(IDS, table, strict=True):
        lines = (ids // GRID[1], ids % GRID[1])
        lengths = np.bincount(lines[0 if by_rows else 1], minlength=GRID[0 if by_rows else 1])
        before = [0, *itertools.accumulate(math.ceil(n / n_together) for n in lengths)]
        n_empty = GRID[1] - len(set(lines[1]))
        assert n_empty > 0
        assert found.tolist() == [*before, before[-1] + n_empty * with_bias]


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("n_together", [1, 2, 4])
def test_groups_have_every_kept_block_once_and_like_lengths(by_rows, n_together):
    for kernel in (0, 1):
        blocks = blocks_of(kernel)
        lists = blocks.rows if by_rows else blocks.columns
        n_lines = GRID[0 if by_rows else 1]
        table = table_of(blocks, n_together, by_rows=by_rows, with_bias=True)
        which = jnp.int32(kernel)
        shares = shares_of(Plan(9, 4, n_lines, n_together), Table(table, which))
        start = Table(lists.start, which)
        n_groups = int(shares.n_groups)
        found = [shares.find(jnp.int32(group), start) for group in range(n_groups)]
        entries = [int(e) for g in found for e in range(g.entry, g.entry + g.length)]
        assert entries == list(range(IDS.shape[1]))
        for number, group in enumerate(found):
            line = int(group.line)
            first, after = (int(lists.start[kernel, line + i]) for i in (0, 1))
            assert first <= group.entry < group.entry + group.length <= after
            like = [g.length for g in found if g.line == line]
            assert max(like) - min(like) <= 1
            assert max(like) <= n_together
            for entry in range(group.entry, group.entry + group.length):
                place, length = jnp.int32(entry - first), jnp.int32(after - first)
                own = shares.group_of(group.line, place, length)
                assert tuple(map(int, own)) == (number, entry - group.entry)


@pytest.mark.parametrize("n_steps", [1, 2, 9, 40])
@pytest.mark.parametrize("n_programs", [1, 3, 6, 7, 132])
def test_every_step_belongs_to_one_program_and_shares_are_counted(n_steps, n_programs):
    blocks = blocks_of(1)
    table = table_of(blocks, 2, by_rows=True, with_bias=True)
    plan = Plan(n_steps, n_programs, GRID[0], 2)
    shares = shares_of(plan, Table(table, jnp.int32(1)))
    n_all = int(table[1, -1])
    assert n_all == 6
    rounds = n_all // n_programs
    taken: dict[int, list[tuple[int, int, int, int]]] = {group: [] for group in range(n_all)}
    lengths = []
    for program in range(n_programs):
        n_parts = int(shares.n_parts(jnp.int32(program)))
        parts = [shares.part(jnp.int32(program), jnp.int32(turn)) for turn in range(n_parts)]
        lengths.append(sum(int(part.last - part.first) for part in parts))
        for turn, part in enumerate(parts):
            first, last, share, group = map(int, (part.first, part.last, part.share, part.group))
            assert 0 <= first < last <= n_steps
            taken[group].append((first, last, share, program))
            # In rounds all programs have a whole group, each its own.
            if turn < rounds:
                assert (group, first, last) == (turn * n_programs + program, 0, n_steps)
            # It begins in the middle of one group at most, for whose sums it has room.
            assert (share > 0) == (first > 0)
            assert not first or turn == rounds
    # All but the last of those that work beyond the rounds have as many.
    busy = [n for n in lengths if n > rounds * n_steps]
    assert set(busy[:-1]) <= {max(busy, default=0)}
    assert lengths == busy + [rounds * n_steps] * (n_programs - len(busy))
    layer = SparseLayer((6 * 64, 5 * 64), (64, 64), IDS.shape[1], -1, "bfloat16")
    for group, own in taken.items():
        assert [share for *_, share, _ in own] == list(range(len(own)))
        assert [step for first, last, *_ in own for step in range(first, last)] == list(
            range(n_steps)
        )
        assert int(shares.n_shares(jnp.int32(group))) == len(own)
        assert len(own) <= plan.n_shares(layer) <= MOST_SHARES
        if group >= rounds * n_programs:
            programs = [program for *_, program in own]
            first_program = int(shares.first_program(jnp.int32(group)))
            assert programs == list(range(first_program, first_program + len(own)))
