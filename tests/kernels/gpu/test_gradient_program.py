"""Kernel gradients of blocks that are computed together, with their rows in shares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from simulated_hopper import simulated
from simulated_memory import SimulationError
from test_product_program import INTERPRETED
from test_products import EPS, normal

from pallas_kernels import SparseLayer
from pallas_kernels.layout import dense_mask
from pallas_kernels.mosaic import gradient, warpgroup
from pallas_kernels.mosaic.gradient_tiles import GradientTiles

__all__ = ["simulated"]


CUTS = pytest.mark.parametrize(
    ("block", "dtype", "rows", "n_together", "by_rows", "n_groups"),
    [
        ((16, 16), "bfloat16", 300, 4, False, 2),
        ((16, 16), "bfloat16", 300, 4, True, 4),
        ((16, 16), "float32", 150, 4, True, 4),
        ((64, 32), "bfloat16", 300, 1, True, 4),
        ((64, 32), "float32", 150, 1, True, 4),
        ((64, 32), "bfloat16", 300, 2, True, 4),
        ((16, 64), "bfloat16", 300, 2, False, 3),
        ((32, 128), "bfloat16", 500, 2, False, 3),
        ((32, 64), "bfloat16", 300, 2, True, 4),
        ((16, 128), "bfloat16", 300, 1, True, 4),
    ],
    ids=str,
)


@pytest.mark.thorough(after=2)
@INTERPRETED
@CUTS
def test_shares_of_rows_through_a_short_ring_add_up_to_the_whole(
    block, dtype, rows, n_together, by_rows, n_groups
):
    compute(block, dtype, rows, n_together, by_rows, n_groups)


@pytest.mark.thorough(after=4)
@pytest.mark.usefixtures("simulated")
@CUTS
def test_each_buffer_of_a_simulated_hopper_is_whole_while_it_is_read(
    block, dtype, rows, n_together, by_rows, n_groups
):
    with jax.disable_jit():
        compute(block, dtype, rows, n_together, by_rows, n_groups)


@pytest.mark.usefixtures("simulated")
def test_a_simulated_hopper_notices_products_that_are_not_waited_for(monkeypatch):
    finish = warpgroup.finish_products
    monkeypatch.setattr(warpgroup, "finish_products", lambda n_left: finish(n_left + 1))
    with jax.disable_jit(), pytest.raises(SimulationError):
        compute((16, 64), "bfloat16", 700, 2, False, 3)


def compute(
    block: tuple[int, int],
    dtype: str,
    rows: int,
    n_together: int,
    by_rows: bool,
    n_groups: int,
) -> None:
    """DW of four kept blocks of eight, in both columns of four and in three rows of two, is right.

    One is alone in its column, and two of the rows have one.
    """
    height, width = block[1], block[0]
    n_in, n_out = 4 * height, 2 * width
    kept = jnp.asarray([0, 1, 3, 5], jnp.int32)
    # Two shares, of three steps or two, however many groups there are.
    tiles = GradientTiles(n_together, stages=2, programs=2 * n_groups, by_rows=by_rows)
    layer = SparseLayer((n_in, n_out), block, 4, -1, dtype)
    x, dy = normal(rows, n_in, dtype=dtype), normal(rows, n_out, dtype=dtype, seed=1)
    found = gradient.kernel_gradient(x, dy, kept, layer, tiles, interpret=True)
    a, b = (np.asarray(v).astype(np.float64) for v in (x, dy))
    want = a.T @ b
    tolerance = 4 * EPS * np.sqrt(rows) * np.sqrt((a**2).T @ b**2)
    tolerance += float(jnp.finfo(dtype).eps) / 2 * np.abs(want)
    mask = np.asarray(dense_mask(kept, layer.kernel_shape, block))
    found = np.asarray(found).astype(np.float64)
    np.testing.assert_array_equal(found[~mask], 0)
    np.testing.assert_array_less(np.abs(found - want)[mask], tolerance[mask])
