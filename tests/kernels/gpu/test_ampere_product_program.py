"""Which kept blocks a program of a product on Ampere walks through, and in which order."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.lists import list_columns
from pallas_kernels.mosaic.ampere_product_program import Walk

DOWN, ACROSS = 7, 10


@pytest.mark.parametrize("n_shares", [1, 3, 10])
def test_the_walks_of_all_programs_meet_every_kept_block_once(n_shares):
    grid = np.random.default_rng(0).uniform(size=(DOWN, ACROSS)) < 0.4
    grid[:, [4, 7]] = False
    lists = list_columns(jnp.asarray(np.flatnonzero(grid), jnp.int32), (DOWN, ACROSS))
    met = np.zeros((DOWN, ACROSS), int)
    for index in range(n_shares):
        walk = Walk(lists.start, lists.across, lists.order, jnp.int32(index), n_shares)
        place, turns = walk.beginning(jnp.int32(0)), []
        while place.exists:
            met[int(walk.block(place.entry)), int(place.column)] += 1
            turns.append(int(place.turn))
            # The first entry of a turn is where the multiplication of its column begins.
            beginning = walk.beginning(place.turn)
            assert int(beginning.entry) <= int(place.entry) < int(beginning.last)
            place = walk.after(place)
        assert turns == sorted(turns)
        lengths = [turns.count(turn) for turn in range(int(walk.n_turns()))]
        assert lengths == sorted(lengths, reverse=True)
        # Behind the end there is nothing more to fetch.
        assert not walk.after(place).exists
    np.testing.assert_array_equal(met, grid)
