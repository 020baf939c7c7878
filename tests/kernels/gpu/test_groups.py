"""Kept blocks that are computed together."""

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import SparseLayer
from pallas_kernels.mosaic.groups import Groups, group, spread_parts


@pytest.mark.parametrize(("n_together", "ratio"), [(1, 0.4), (2, 0.4), (4, 0.9)])
def test_each_kept_block_is_in_one_group_of_its_column(n_together, ratio):
    blocks = np.random.default_rng(0).uniform(size=(7, 5)) >= ratio
    kept = np.flatnonzero(blocks)
    groups = group(jnp.asarray(kept, jnp.int32), (7, 5), n_together)
    column, length, row, place = (np.asarray(a) for a in groups)
    assert len(set(place)) == kept.size
    np.testing.assert_array_equal(row[place], kept // 5)
    np.testing.assert_array_equal(column[place // n_together], kept % 5)
    # A group has its blocks in front, and there is a block for every place.
    assert all(place % n_together < length[place // n_together])
    assert length.sum() == kept.size
    lengths = blocks.sum(axis=0)
    assert (length > 0).sum() == np.ceil(lengths / n_together).sum()
    # What is named behind the last block of a group can be loaded, for engines that do.
    assert set(row) <= set(range(7))
    assert set(column) <= set(range(5))


def test_shares_are_summed_before_they_are_rounded():
    layer = SparseLayer((16, 16), (16, 16), 1, -1, "bfloat16")
    parts = jnp.array([1 + 2**-9, -1.0])[:, None, None, None] * jnp.ones((2, 1, 16, 16))
    first = jnp.zeros(1, jnp.int32)
    dw = spread_parts(parts, Groups(first, first, first, first), first, layer, is_swapped=False)
    np.testing.assert_array_equal(dw.astype(jnp.float32), np.full((16, 16), 2**-9))
