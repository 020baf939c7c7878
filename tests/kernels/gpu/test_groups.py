"""Kept blocks that are computed together."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import SparseLayer
from pallas_kernels.lists import list_alike, listed
from pallas_kernels.mosaic.groups import Groups, group, spread_parts


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize(("n_together", "ratio"), [(1, 0.4), (2, 0.4), (4, 0.9)])
def test_each_kept_block_is_in_one_group_of_its_line(n_together, ratio, by_rows):
    blocks = np.random.default_rng(0).uniform(size=(7, 5)) >= ratio
    kept = np.flatnonzero(blocks)
    groups = group(
        listed(jnp.asarray(kept, jnp.int32), (7, 5)), (7, 5), n_together, by_rows=by_rows
    )
    line, length, across, place = (np.asarray(a[0]) for a in groups)
    column, row = (across, line) if by_rows else (line, across)
    own = {True: place, False: place // n_together}
    assert len(set(place)) == kept.size
    np.testing.assert_array_equal(row[own[not by_rows]], kept // 5)
    np.testing.assert_array_equal(column[own[by_rows]], kept % 5)
    # A group has its blocks in front, and there is a block for every place.
    assert all(place % n_together < length[place // n_together])
    assert length.sum() == kept.size
    lengths = blocks.sum(axis=1 if by_rows else 0)
    assert (length > 0).sum() == np.ceil(lengths / n_together).sum()
    # What is named behind the last block of a group can be loaded, for engines that do.
    assert set(row) <= set(range(7))
    assert set(column) <= set(range(5))


def test_shares_are_summed_before_they_are_rounded():
    layer = SparseLayer((16, 16), (16, 16), 1, -1, "bfloat16")
    parts = jnp.array([1 + 2**-9, -1.0])[:, None, None, None] * jnp.ones((2, 1, 16, 16))
    kept, first = listed(jnp.zeros(1, jnp.int32), (1, 1)), jnp.zeros((1, 1), jnp.int32)
    dw = spread_parts(parts, Groups(first, first, first, first), kept, layer, is_swapped=False)
    np.testing.assert_array_equal(dw.astype(jnp.float32), np.full((16, 16), 2**-9))


@pytest.mark.thorough
def test_kernels_that_are_alike_are_grouped_together_as_each_alone():
    rng = np.random.default_rng(0)
    kept = np.stack([np.sort(rng.choice(35, 14, replace=False)) for _ in range(3)])
    kept = jnp.asarray(kept, jnp.int32)
    for index, blocks in enumerate(list_alike(kept, (7, 5))):
        for by_rows in (False, True):
            alone = group(listed(kept[index], (7, 5)), (7, 5), 2, by_rows=by_rows)
            together = blocks.own(group(blocks, (7, 5), 2, by_rows=by_rows))
            for found, expected in zip(together, alone, strict=True):
                np.testing.assert_array_equal(found, expected[0])
