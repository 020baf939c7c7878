"""All work of a gradient, shared out evenly among programs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_balanced_groups import GRID, IDS, groups_of

from pallas_kernels import SparseLayer
from pallas_kernels.lists import list_alike
from pallas_kernels.mosaic.balanced_groups import Groups, table_of
from pallas_kernels.mosaic.balanced_shares import (
    CACHED_BYTES,
    MOST_SHARES,
    Part,
    Plan,
    Shares,
    plan_of,
    shares_of,
)
from pallas_kernels.mosaic.gradient_tiles import GradientTiles
from pallas_kernels.mosaic.warpgroup import Table


def parts_of(shares: Shares) -> list[list[tuple[int, ...]]]:
    """Of each program group, first step, the one behind the last, and share of all its parts."""
    spans = jax.vmap(shares.span)(jnp.arange(shares.plan.n_programs))
    n_parts = np.asarray(shares.n_parts(spans)).tolist()
    which = [(program, turn) for program, n in enumerate(n_parts) for turn in range(n)]

    def part(number: jax.Array) -> Part:
        span = jax.tree.map(lambda a: a[number[0]], spans)
        return shares.part(number[0], span, number[1])

    parts = iter(np.stack(jax.vmap(part)(jnp.asarray(which, jnp.int32)), axis=1).tolist())
    return [[tuple(next(parts)) for _ in range(n)] for n in n_parts]


@pytest.mark.parametrize(("in_rounds", "beside"), [(True, 1), (False, 1), (False, 3)])
@pytest.mark.parametrize("n_steps", [1, 2, 40])
@pytest.mark.parametrize("n_programs", [1, 3, 6, 7, 132])
def test_every_step_belongs_to_one_program_and_shares_are_counted(
    n_steps, n_programs, in_rounds, beside
):
    groups = groups_of(1, 2, by_rows=True, beside=beside)
    plan = Plan(n_steps, n_programs, GRID[0], 2, in_rounds, beside)
    shares = shares_of(plan, groups)
    n_all, rounds = int(groups.n_all), int(shares.rounds)
    assert n_all == 6
    assert rounds == (max(n_all - plan.fewest_left, 0) // n_programs if in_rounds else 0)
    taken: dict[int, list[tuple[int, int, int, int]]] = {group: [] for group in range(n_all)}
    done = []
    n_blocks = [int(groups.find(jnp.int32(g)).length) for g in range(int(groups.n))]
    weights = [1 if in_rounds else n + beside for n in [*n_blocks, 0]]
    for program, parts in enumerate(parts_of(shares)):
        shared = [weights[group] * (last - first) for group, first, last, _ in parts[rounds:]]
        done.append(sum(shared))
        for turn, (group, first, last, share) in enumerate(parts):
            assert 0 <= first < last <= n_steps
            taken[group].append((first, last, share, program))
            # In rounds all programs have a whole group, each its own.
            if turn < rounds:
                assert (group, first, last) == (turn * n_programs + program, 0, n_steps)
            # It begins in the middle of one group at most, for whose sums it has room.
            assert (share > 0) == (first > 0)
            assert not first or turn == rounds
    # Of what is shared out all have as much, to a step, but the last of those that have some.
    busy = [n for n in done if n]
    assert done == busy + [0] * (n_programs - len(busy))
    assert all(abs(n - int(shares.each)) < plan.most for n in busy[:-1])
    assert busy[-1:] <= [int(shares.each) + plan.most - 1]
    layer = SparseLayer((6 * 64, 5 * 64), (64, 64), IDS.shape[1], -1, "bfloat16")
    for group, own in taken.items():
        assert [share for *_, share, _ in own] == list(range(len(own)))
        assert [step for first, last, *_ in own for step in range(first, last)] == list(
            range(n_steps)
        )
        counted = groups.of_column(jnp.int32(0))
        if group < int(groups.n):
            line, entry, _ = groups.find(jnp.int32(group))
            counted, _ = groups.of_block(line, entry - groups.start.ref[1, line])
        assert int(counted.group) == group
        assert int(shares.n_shares(counted)) == len(own)
        assert len(own) <= plan.n_shares(layer) <= MOST_SHARES
        if group >= rounds * n_programs:
            programs = [program for *_, program in own]
            first_program = int(shares.first_program(counted))
            assert programs == list(range(first_program, first_program + len(own)))


@pytest.mark.parametrize(("block", "n_together"), [(64, 4), (64, 2), (128, 2), (32, 8)])
def test_programs_load_as_much_whatever_the_mask(block, n_together):
    """Of 8192 rows, 1024 to 4096 features, at 0.8. Those with as many steps load up to 41% more."""
    grid = 1024 // block, 4096 // block
    n_kept = -(-grid[0] * grid[1] // 5)
    layer = SparseLayer((1024, 4096), (block, block), n_kept, -1, "bfloat16")
    plan = plan_of(layer, 8192, GradientTiles(n_together, 4, 132, by_rows=False, balanced=True))
    programs = jnp.arange(plan.n_programs, dtype=jnp.int32)
    for seed in range(3):
        ids = np.random.default_rng(seed).choice(grid[0] * grid[1], n_kept, replace=False)
        blocks = list_alike(jnp.asarray(np.sort(ids)[None], jnp.int32), grid)[0]
        table = table_of(blocks, n_together, by_rows=False, with_bias=True)
        before, start = (Table(a, jnp.int32(0)) for a in (table, blocks.columns.start))
        groups = Groups(before, start, plan.beside)
        numbers = jnp.arange(int(groups.n), dtype=jnp.int32)
        own = np.asarray(
            jax.jit(jax.vmap(lambda number, groups=groups: groups.find(number).length))(numbers)
        )
        each = np.concatenate([own + 1, np.full(int(groups.n_all - groups.n), 1)])
        spans = jax.jit(jax.vmap(shares_of(plan, groups).span))(programs)
        loads = []
        for n, first, begin, _, end in zip(*map(np.asarray, spans), strict=True):
            steps = np.full(n, plan.n_steps)
            if n:
                steps[-1] = end
                steps[0] -= begin
            loads.append(int(np.sum(each[first : first + n] * steps)))
        assert sum(loads) == each.sum() * plan.n_steps
        assert max(loads) <= 1.04 * np.mean(loads)


def test_operands_that_the_cache_does_not_hold_are_walked_in_rounds():
    tiles = GradientTiles(4, 4, 132, by_rows=False, balanced=True)
    for (n_in, n_out), n_rows in itertools.product(
        ((384, 1536), (1024, 4096), (4096, 16384)), (8192, 32768)
    ):
        layer = SparseLayer((n_in, n_out), (64, 64), 8, -1, "bfloat16")
        in_rounds = n_rows * (n_in + n_out) * 2 > CACHED_BYTES
        assert plan_of(layer, n_rows, tiles).in_rounds == in_rounds
