"""Kernels are tuned with blocks that lie as unevenly as those of a selection."""

import numpy as np
from tuning.work import kept_blocks

from pallas_kernels import SparseLayer


def test_kept_blocks_are_drawn_once_each_and_have_their_lists():
    layer = SparseLayer((128, 256), (16, 32), 9, -1, "float32")
    kept, again = kept_blocks(layer), kept_blocks(layer)
    ids = np.asarray(kept.ids[0])
    assert len(set(ids)) == kept.size == 9
    assert 0 <= ids.min() < ids.max() < 4 * 16
    np.testing.assert_array_equal(ids, np.sort(again.ids[0]))
    lengths = np.diff(np.asarray(kept.columns.start[0]))
    assert (lengths.sum(), lengths.size) == (9, 16)
    assert lengths.min() < lengths.max()
