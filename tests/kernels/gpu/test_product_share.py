"""Which kept blocks the programs of a product multiply."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.layout import list_columns
from pallas_kernels.mosaic import warpgroup
from pallas_kernels.mosaic.product_share import Share
from pallas_kernels.mosaic.product_tiles import Tiles, cut_into_pieces

DOWN, ACROSS = 7, 10


@pytest.mark.parametrize(
    ("pieces", "lines", "abreast"), [(1, 1, 1), (3, 4, 1), (1, 1, 4), (3, 2, 2)]
)
@pytest.mark.parametrize("n_shares", [1, 3])
def test_every_kept_block_is_multiplied_once_with_its_piece_of_the_panel(
    pieces, lines, abreast, n_shares
):
    grid = np.random.default_rng(0).uniform(size=(DOWN, ACROSS)) < 0.4
    grid[:, 4] = False
    lists = list_columns(jnp.asarray(np.flatnonzero(grid), jnp.int32), (DOWN, ACROSS))
    tiles = Tiles(4, abreast, 1, pieces, blocks=-(-DOWN // pieces), lines=lines, stages=2)
    cut = cut_into_pieces(lists, tiles, DOWN)
    done = np.zeros((DOWN, ACROSS), int)
    lengths = []
    for index in range(n_shares):
        share = Share(*cut, lists.across, lists.order, tiles, jnp.int32(index), n_shares)
        of_share = []
        for turn in range(int(share.n_turns())):
            named = np.zeros((pieces, tiles.blocks), bool)
            for rank, beside in itertools.product(range(lines), range(abreast)):
                total = 0
                for piece in range(pieces):
                    entries = share.entries(jnp.int32(turn), rank, beside, jnp.int32(piece))
                    column, first, last = map(int, jax.device_get(entries))
                    total += last - first
                    steps = int(share.n_steps(jnp.int32(turn), rank, jnp.int32(piece)))
                    assert last - first <= steps
                    assert abreast > 1 or last - first == steps
                    for entry in range(first, last):
                        row = int(share.block(jnp.int32(entry)))
                        assert row // tiles.blocks == piece
                        named[piece, row % tiles.blocks] = True
                        done[row, column] += 1
                of_share.append(total)
            for piece in range(pieces if pieces > 1 else 0):
                bits = int(share.needs(jnp.int32(turn), jnp.int32(piece)))
                assert [bool(bits >> i & 1) for i in range(tiles.blocks)] == named[piece].tolist()
        lengths.append(of_share)
    np.testing.assert_array_equal(done, grid)
    # Longest first, and none has a group more than another but one.
    assert all(of_share == sorted(of_share, reverse=True) for of_share in lengths)
    turns = [len(of_share) // tiles.group for of_share in lengths]
    assert max(turns) - min(turns) <= 1


def test_a_short_last_group_reads_no_column_behind_the_last(monkeypatch):
    monkeypatch.setattr(warpgroup, "read", lambda ref, at: jnp.asarray(np.asarray(ref)[int(at)]))
    lists = list_columns(jnp.arange(30, dtype=jnp.int32), (3, 10))
    tiles = Tiles(2, abreast=2, cluster=1, pieces=1, blocks=3, lines=2, stages=2)
    cut = cut_into_pieces(lists, tiles, 3)
    share = Share(*cut, lists.across, lists.order, tiles, jnp.int32(0), 1)
    last = share.n_turns() - 1
    exists = [bool(share.column(last, i // 2, i % 2)[1]) for i in range(4)]
    assert exists == [True, True, False, False]
