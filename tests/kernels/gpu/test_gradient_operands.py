"""The operands of a kernel's gradient, as Hopper reads them."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import SparseLayer
from pallas_kernels.mosaic.gradient_operands import contiguous, cut_of, laid_out
from pallas_kernels.mosaic.gradient_tiles import balanced_space, search_space
from pallas_kernels.tensor_cores import SIDES


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("block", list(itertools.product(SIDES, SIDES)), ids=str)
def test_what_lies_side_by_side_divides_what_is_copied_and_fills_no_more_than_a_line(block, dtype):
    layer = SparseLayer((512, 1024), block, 8, -1, dtype)
    size = jnp.dtype(dtype).itemsize
    for tiles in (*search_space(layer), *balanced_space(layer)):
        cut = cut_of(layer, tiles)
        shape, together = cut.shape, contiguous(cut, dtype)
        assert together * size in (32, 64, 128)
        along = (shape.own, shape.own_along_rows), (shape.shared, shape.shared_along_rows)
        for features, is_along_rows in along:
            assert (cut.depth if is_along_rows else features) % together == 0


def test_rows_are_padded_and_what_lies_along_them_is_transposed():
    x, dy = (np.arange(n * 13, dtype=np.float32).reshape(13, n) for n in (128, 64))
    wide = SparseLayer((128, 64), (64, 64), 1, -1, "float32")
    by_columns = next(tiles for tiles in search_space(wide) if not tiles.by_rows)
    own, shared = laid_out(jnp.asarray(x), jnp.asarray(dy), cut_of(wide, by_columns), by_rows=False)
    np.testing.assert_array_equal(own, np.pad(x, ((0, 19), (0, 0))).T)
    np.testing.assert_array_equal(shared, np.pad(dy, ((0, 19), (0, 0))).T)
    narrow = SparseLayer((128, 64), (64, 64), 1, -1, "bfloat16")
    by_rows = next(tiles for tiles in search_space(narrow) if tiles.by_rows)
    own, shared = laid_out(jnp.asarray(x), jnp.asarray(dy), cut_of(narrow, by_rows), by_rows=True)
    np.testing.assert_array_equal(own, np.pad(dy, ((0, 3), (0, 0))))
    np.testing.assert_array_equal(shared, np.pad(x, ((0, 3), (0, 0))))
