"""All steps of a gradient, shared out evenly among programs."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import SparseLayer
from pallas_kernels.lists import list_alike
from pallas_kernels.mosaic.balanced_shares import MOST_SHARES, Plan, shares_of, table_of
from pallas_kernels.mosaic.gradient_sum import fits
from pallas_kernels.mosaic.gradient_tiles import balanced_space
from pallas_kernels.mosaic.support import SIDES
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
                own = shares.group_of(
                    group.line, jnp.int32(entry - first), jnp.int32(after - first)
                )
                assert int(own) == number


def test_the_sums_of_as_many_shares_as_a_group_may_have_are_added_by_one_kernel():
    for block in itertools.product(SIDES, SIDES):
        layer = SparseLayer((256, 512), block, 2, -1, "bfloat16")
        assert not list(balanced_space(layer)) or fits(MOST_SHARES, layer)
    assert list(balanced_space(SparseLayer((256, 512), (64, 64), 2, -1, "bfloat16")))


@pytest.mark.parametrize("n_steps", [1, 2, 9, 40])
@pytest.mark.parametrize("n_programs", [1, 3, 7, 132])
def test_every_step_belongs_to_one_program_and_shares_are_counted(n_steps, n_programs):
    blocks = blocks_of(1)
    table = table_of(blocks, 2, by_rows=True, with_bias=True)
    plan = Plan(n_steps, n_programs, GRID[0], 2)
    shares = shares_of(plan, Table(table, jnp.int32(1)))
    n_all = int(table[1, -1])
    taken: dict[int, list[tuple[int, int, int]]] = {group: [] for group in range(n_all)}
    lengths = []
    for program in map(jnp.int32, range(n_programs)):
        n_parts = int(shares.n_parts(program))
        parts = [shares.part(program, jnp.int32(turn)) for turn in range(n_parts)]
        lengths.append(sum(int(part.last - part.first) for part in parts))
        for part in parts:
            assert 0 <= part.first < part.last <= n_steps
            taken[int(part.group)].append((int(part.first), int(part.last), int(part.share)))
    # All but the last of those that work have as many.
    busy = [n for n in lengths if n]
    assert set(busy[:-1]) <= {max(busy)}
    assert lengths == busy + [0] * (n_programs - len(busy))
    layer = SparseLayer((6 * 64, 5 * 64), (64, 64), IDS.shape[1], -1, "bfloat16")
    for group, own in taken.items():
        assert [share for *_, share in own] == list(range(len(own)))
        assert [step for first, last, _ in own for step in range(first, last)] == list(
            range(n_steps)
        )
        assert int(shares.n_shares(jnp.int32(group))) == len(own)
        assert len(own) <= plan.n_shares(layer) <= MOST_SHARES
