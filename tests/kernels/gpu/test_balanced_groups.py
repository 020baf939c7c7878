"""The groups of kept blocks whose gradients are computed together."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.lists import list_alike
from pallas_kernels.mosaic.balanced_groups import Groups, table_of
from pallas_kernels.mosaic.warpgroup import Table

GRID = (6, 5)
"""Of blocks: two kernels keep some of its second row, none of its fourth column."""
IDS = np.asarray([[5, 6, 7, 9, 10, 20, 27], [0, 5, 6, 11, 12, 16, 29]], np.int32)
BOTH_WAYS = pytest.mark.parametrize("by_rows", [True, False])
TOGETHER = pytest.mark.parametrize("n_together", [1, 2, 4])


def blocks_of(kernel: int):
    return list_alike(jnp.asarray(IDS), GRID)[kernel]


def groups_of(
    kernel: int, n_together: int, *, by_rows: bool, with_bias: bool = True, beside: int = 1
) -> Groups:
    blocks, which = blocks_of(kernel), jnp.int32(kernel)
    lists = blocks.rows if by_rows else blocks.columns
    table = table_of(blocks, n_together, by_rows=by_rows, with_bias=with_bias)
    return Groups(Table(table, which), Table(lists.start, which), beside)


@BOTH_WAYS
@TOGETHER
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


@BOTH_WAYS
@TOGETHER
def test_groups_have_every_kept_block_once_and_like_lengths(by_rows, n_together):
    for kernel in (0, 1):
        groups = groups_of(kernel, n_together, by_rows=by_rows)
        start = groups.start.ref[kernel]
        found = [groups.find(jnp.int32(group)) for group in range(int(groups.n))]
        entries = [int(e) for g in found for e in range(g.entry, g.entry + g.length)]
        assert entries == list(range(IDS.shape[1]))
        for number, group in enumerate(found):
            line = int(group.line)
            first, after = (int(start[line + i]) for i in (0, 1))
            assert first <= group.entry < group.entry + group.length <= after
            like = [g.length for g in found if g.line == line]
            assert max(like) - min(like) <= 1
            assert max(like) <= n_together
            for entry in range(group.entry, group.entry + group.length):
                own, index = groups.of_block(group.line, jnp.int32(entry - first))
                assert (int(own.group), int(index)) == (number, entry - group.entry)
                assert int(own.each) == int(group.length) + 1


@BOTH_WAYS
@TOGETHER
@pytest.mark.parametrize(("with_bias", "beside"), [(True, 1), (False, 1), (True, 3)])
def test_a_group_is_found_by_each_load_that_it_counts(by_rows, n_together, with_bias, beside):
    """Those of its blocks, and some beside them."""
    for kernel in (0, 1):
        groups = groups_of(kernel, n_together, by_rows=by_rows, with_bias=with_bias, beside=beside)
        lengths = [int(groups.find(jnp.int32(group)).length) for group in range(int(groups.n))]
        lengths += [0] * (int(groups.n_all) - int(groups.n))
        before = 0
        for group, length in enumerate(lengths):
            for place in range(length + beside):
                found = groups.at(jnp.int32(before + place))
                assert tuple(map(int, found)) == (group, before, length + beside)
            before += length + beside
        assert int(groups.n_loads) == before
