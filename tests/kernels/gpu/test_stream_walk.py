"""The tiles of the programs of a streamed product."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.lists import list_alike
from pallas_kernels.mosaic.stream_walk import Walk
from pallas_kernels.mosaic.warpgroup import Table


@pytest.mark.parametrize("longest_first", [True, False])
@pytest.mark.parametrize("n_programs", [1, 3, 5, 7, 12])
def test_every_tile_is_one_programs_in_the_order_that_keeps_operands_cached(
    n_programs, longest_first
):
    """Of three block columns, one of which keeps nothing, and four tiles of rows."""
    columns = list_alike(jnp.asarray([[0, 2, 3, 5, 8]], jnp.int32), (3, 3))[0].columns
    which, across = jnp.int32(0), np.asarray(columns.across[0])

    def walk_of(program: int) -> Walk:
        start, order, own = (
            Table(a, which) for a in (columns.start, columns.order, columns.across)
        )
        number = jnp.int32(program)
        return Walk(start, order, own, number, n_programs, 3, 4, longest_first)

    found: list[tuple[int, int]] = []
    for program in range(n_programs):
        walk = walk_of(program)
        tiles = [walk.tile(jnp.int32(turn)) for turn in range(int(walk.n_turns()))]
        rows = [int(tile.above) for tile in tiles]
        lengths = [int(tile.last - tile.first) for tile in tiles]
        if longest_first:
            assert lengths == sorted(lengths, reverse=True)
        else:
            assert rows == sorted(rows)
        for tile in tiles:
            column = int(tile.column)
            found.append((int(tile.above), column))
            entries = range(int(tile.first), int(tile.last))
            wanted = {0: [0, 1], 1: [], 2: [0, 1, 2]}[column]
            assert [int(walk.block(jnp.int32(e))) for e in entries] == wanted
            assert across[list(entries)].tolist() == wanted
        # What is looked up ahead of the last tile is there.
        ahead = walk.tile(jnp.int32(len(tiles)))
        assert 0 <= int(ahead.column) < 3
        assert 0 <= int(ahead.above) < 4
    assert sorted(found) == [(above, column) for above in range(4) for column in range(3)]
    assert int(walk_of(0).block(jnp.int32(5))) == across[-1]


@pytest.mark.parametrize(
    ("longest_first", "n_tiles"), [(True, [1, 1, 1, 2, 2]), (False, [2, 2, 1, 1, 1])]
)
def test_of_turns_back_and_forth_the_last_tiles_are_theirs_who_have_least(longest_first, n_tiles):
    """Seven tiles, of one block column, for five programs."""
    columns = list_alike(jnp.asarray([[0, 1]], jnp.int32), (2, 1))[0].columns
    which = jnp.int32(0)
    start, order, across = (Table(a, which) for a in (columns.start, columns.order, columns.across))
    found = [
        int(Walk(start, order, across, jnp.int32(i), 5, 1, 7, longest_first).n_turns())
        for i in range(5)
    ]
    assert found == n_tiles


@pytest.mark.parametrize(("block", "most"), [(32, 1.03), (64, 1.05), (128, 1.15)])
def test_programs_load_as_much_for_whatever_mask_where_the_longest_come_first(block, most):
    """8192 rows of 1024 features, 4096 results, at 0.8; by rows it is up to 1.2 to 1.4 times."""
    down, across, n_programs, n_row_tiles = 1024 // block, 4096 // block, 132, 32
    for seed in range(3):
        n_kept = -(-down * across // 5)
        ids = np.random.default_rng(seed).choice(down * across, n_kept, replace=False)
        columns = list_alike(jnp.asarray(np.sort(ids)[None], jnp.int32), (down, across))[0].columns
        which = jnp.int32(0)
        first = Walk(
            start=Table(columns.start, which),
            order=Table(columns.order, which),
            across=Table(columns.across, which),
            number=which,
            n_programs=n_programs,
            n_lines=across,
            n_row_tiles=n_row_tiles,
            longest_first=True,
        )

        @jax.jit
        @jax.vmap
        def load(number, first=first):
            walk = dataclasses.replace(first, number=number)
            turns = jnp.arange(-(-across * n_row_tiles // n_programs), dtype=jnp.int32)
            tiles = jax.vmap(walk.tile)(turns)
            return jnp.sum(jnp.where(turns < walk.n_turns(), tiles.last - tiles.first, 0))

        loads = np.asarray(load(jnp.arange(n_programs, dtype=jnp.int32)))
        assert loads.sum() == n_kept * n_row_tiles
        assert loads.max() <= most * loads.mean()
