"""Which kept blocks the programs of a product multiply."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.lists import BlockLists, list_columns
from pallas_kernels.mosaic import warpgroup
from pallas_kernels.mosaic.product_share import Share
from pallas_kernels.mosaic.product_tiles import Tiles, needed_blocks, steps_of_ranks

DOWN, ACROSS = 7, 10


def random_grid() -> np.ndarray:
    grid = np.random.default_rng(0).uniform(size=(DOWN, ACROSS)) < 0.4
    grid[:, 4] = False
    return grid


def listed_columns(grid: np.ndarray) -> BlockLists:
    shape = (grid.shape[0], grid.shape[1])
    return list_columns(jnp.asarray(np.flatnonzero(grid), jnp.int32), shape)


def share_of(lists: BlockLists, tiles: Tiles, number: int, n_shares: int, **changed: Any) -> Share:
    """A share of the second of two kernels, the first of which has other lists."""

    def table(a: jax.Array) -> warpgroup.Table:
        return warpgroup.Table(jnp.stack([jnp.full_like(a, -1), a]), jnp.int32(1))

    share = Share(
        before=table(lists.before),
        needed=table(needed_blocks(lists, tiles)),
        across=table(lists.across),
        steps=table(steps_of_ranks(lists, tiles)),
        ends=None,
        tiles=tiles,
        n_columns=lists.order.size,
        number=jnp.int32(number),
        n_shares=n_shares,
    )
    return share._replace(**changed)


@pytest.mark.parametrize(
    ("pieces", "lines", "abreast"), [(1, 1, 1), (3, 4, 1), (1, 1, 4), (3, 2, 2)]
)
@pytest.mark.parametrize("n_shares", [1, 3])
def test_every_kept_block_is_multiplied_once_with_its_piece_of_the_panel(
    pieces, lines, abreast, n_shares
):
    grid = random_grid()
    lists = listed_columns(grid)
    tiles = Tiles(4, abreast, 1, pieces, blocks=-(-DOWN // pieces), lines=lines, stages=2)
    done = np.zeros((DOWN, ACROSS), int)
    lengths = []
    for index in range(n_shares):
        share = share_of(lists, tiles, index, n_shares)
        of_share = []
        for turn in range(int(share.n_turns())):
            named = np.zeros((pieces, tiles.blocks), bool)
            for rank in range(lines):
                totals = [0] * abreast
                for piece in range(pieces):
                    of_piece = []
                    for beside in range(abreast):
                        entries = share.entries(jnp.int32(turn), rank, beside, jnp.int32(piece))
                        column, first, last = map(int, jax.device_get(entries))
                        of_piece.append(last - first)
                        for entry in range(first, last):
                            row = int(share.block(jnp.int32(entry)))
                            assert row // tiles.blocks == piece
                            named[piece, row % tiles.blocks] = True
                            done[row, column] += 1
                    steps = int(share.n_steps(jnp.int32(turn), rank, jnp.int32(piece)))
                    assert steps == max(of_piece), "all take those of the longest"
                    totals = [a + b for a, b in zip(totals, of_piece, strict=True)]
                of_share += totals
            for piece in range(pieces if pieces > 1 else 0):
                bits = int(share.needs(jnp.int32(turn), jnp.int32(piece)))
                assert [bool(bits >> i & 1) for i in range(tiles.blocks)] == named[piece].tolist()
        lengths.append(of_share)
    np.testing.assert_array_equal(done, grid)
    # None has a group more than another but one.
    turns = [len(of_share) // tiles.group for of_share in lengths]
    assert max(turns) - min(turns) <= 1


def test_columns_as_they_lie_may_end_before_the_next_begin():
    grid = random_grid()
    lists = listed_columns(grid)
    is_used = np.arange(ACROSS) % 3 != 1
    ends = jnp.where(is_used, lists.start[1:], lists.start[:-1])
    tiles = Tiles(1, 1, 1, pieces=1, blocks=DOWN, lines=1, stages=2)
    table = warpgroup.Table(ends[None], jnp.int32(0))
    share = share_of(lists, tiles, 0, 1, ends=table)
    for column in range(ACROSS):
        entries = share.entries(jnp.int32(column), 0, 0, jnp.int32(0))
        found, first, last = map(int, jax.device_get(entries))
        assert found == column
        rows = [int(share.block(jnp.int32(entry))) for entry in range(first, last)]
        assert rows == (np.flatnonzero(grid[:, column]).tolist() if is_used[column] else [])


def test_a_short_last_group_reads_no_column_behind_the_last(monkeypatch):
    def read(ref: Any, at: Any) -> jax.Array:
        return jnp.asarray(np.asarray(ref)[tuple(map(int, at))])

    monkeypatch.setattr(warpgroup, "read", read)
    lists = listed_columns(np.ones((3, 10), bool))
    tiles = Tiles(2, abreast=2, cluster=1, pieces=1, blocks=3, lines=2, stages=2)
    share = share_of(lists, tiles, 0, 1)
    last = share.n_turns() - 1
    exists = [bool(share.column(last, i // 2, i % 2)[1]) for i in range(4)]
    assert exists == [True, True, False, False]
    assert int(share.n_steps(last, 1, jnp.int32(0))) == 0
