"""The tiles of the programs of a streamed product."""

from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.lists import list_alike
from pallas_kernels.mosaic.stream_walk import Walk
from pallas_kernels.mosaic.warpgroup import Table


@pytest.mark.parametrize("n_programs", [1, 3, 7])
def test_every_tile_is_one_programs_and_tiles_of_the_same_rows_follow_each_other(n_programs):
    """Of three block columns, one of which keeps nothing, and four tiles of rows."""
    columns = list_alike(jnp.asarray([[0, 2, 3, 5, 8]], jnp.int32), (3, 3))[0].columns
    which, across = jnp.int32(0), np.asarray(columns.across[0])

    def walk_of(program: int) -> Walk:
        start, order, own = (
            Table(a, which) for a in (columns.start, columns.order, columns.across)
        )
        return Walk(start, order, own, jnp.int32(program), n_programs, n_lines=3, n_row_tiles=4)

    found: Counter[tuple[int, int]] = Counter()
    for program in range(n_programs):
        walk = walk_of(program)
        tiles = [walk.tile(jnp.int32(turn)) for turn in range(int(walk.n_turns()))]
        above = [int(tile.above) for tile in tiles]
        assert above == sorted(above)
        for tile in tiles:
            column = int(tile.column)
            found[int(tile.above), column] += 1
            entries = range(int(tile.first), int(tile.last))
            wanted = {0: [0, 1], 1: [], 2: [0, 1, 2]}[column]
            assert [int(walk.block(jnp.int32(e))) for e in entries] == wanted
            assert across[list(entries)].tolist() == wanted
        # What is looked up ahead of the last tile is there.
        assert 0 <= int(walk.tile(jnp.int32(len(tiles))).column) < 3
    assert found == {(above, column): 1 for above in range(4) for column in range(3)}
    assert int(walk_of(0).block(jnp.int32(5))) == across[-1]
