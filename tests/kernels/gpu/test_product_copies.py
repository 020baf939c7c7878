"""What a product copies on Hopper arrives where it is read, and spoils nothing that is read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from simulated_hopper import LOADED, simulated
from simulated_memory import SimulationError
from test_products import EPS, normal

from pallas_kernels import SparseLayer
from pallas_kernels.layout import dense_mask
from pallas_kernels.mosaic import products
from pallas_kernels.mosaic.product_copies import Copying
from pallas_kernels.mosaic.product_tiles import Tiles

__all__ = ["simulated"]

CUTS = [
    Tiles(1, 1, 1, pieces=1, blocks=6, lines=1, stages=2),
    Tiles(2, 1, 2, pieces=3, blocks=2, lines=2, stages=4),
    Tiles(2, 2, 2, pieces=1, blocks=6, lines=1, stages=2),
    Tiles(4, 2, 2, pieces=3, blocks=2, lines=2, stages=2),
    Tiles(1, 1, 4, pieces=2, blocks=3, lines=4, stages=16),
    Tiles(4, 4, 1, pieces=2, blocks=3, lines=1, stages=4),
]


def multiply(tiles: Tiles, *, transposed: bool, dtype: str = "bfloat16") -> int:
    """A product of six blocks by five of 32x32, one column of which keeps none, is as it should be.

    140 rows are not whole tiles of any cut, and fewer than a cluster of some has.

    Returns:
      How many blocks are kept.
    """
    down, across = (5, 6) if transposed else (6, 5)
    grid = np.random.default_rng(0).uniform(size=(6, 5)) < 0.4
    grid[:, 1] = False
    kept = jnp.asarray(np.flatnonzero(grid.T if transposed else grid), jnp.int32)
    layer = SparseLayer((32 * down, 32 * across), (32, 32), kept.size, -1, dtype)
    x, w = normal(140, 6 * 32, dtype=dtype), normal(*layer.kernel_shape, dtype=dtype, seed=1)
    with jax.disable_jit():
        found = products.multiply(
            x, w, None, kept, layer, tiles, transposed=transposed, interpret=True
        )
    mask = np.asarray(dense_mask(kept, layer.kernel_shape, layer.block))
    a, b = np.asarray(x, np.float64), np.asarray(w, np.float64) * mask
    want = a @ (b.T if transposed else b)
    atol = 4 * EPS * np.sqrt(6 * 32) * np.abs(want).max()
    rtol = float(jnp.finfo(dtype).eps) / 2
    np.testing.assert_allclose(np.asarray(found, np.float64), want, rtol=rtol, atol=atol)
    return kept.size


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("transposed", [False, True], ids=["product", "transposed"])
@pytest.mark.parametrize("tiles", CUTS, ids=str)
def test_each_buffer_of_a_simulated_hopper_is_whole_while_it_is_read(tiles, transposed):
    multiply(tiles, transposed=transposed)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("tiles", CUTS, ids=str)
def test_a_kept_block_is_loaded_once_for_a_cluster_and_no_other(tiles):
    n_kept = multiply(tiles, transposed=False)
    n_clusters = -(-140 // (tiles.rows * tiles.cluster))
    # Five columns by one to four programs: all columns of a tile of rows are somebody's.
    assert LOADED["operand 7"] == n_clusters * n_kept * 32 * 32 * 2


@pytest.mark.usefixtures("simulated")
def test_float32_of_a_simulated_hopper_is_turned_before_it_is_read():
    multiply(CUTS[3], transposed=False, dtype="float32")


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("tiles", [CUTS[0], CUTS[3]], ids=str)
def test_a_simulated_hopper_notices_buffers_that_are_filled_too_early(tiles, monkeypatch):
    def not_waiting(self: Copying, step: jax.Array) -> jax.Array:
        return jax.lax.rem(step, jnp.int32(self.tiles.stages))

    monkeypatch.setattr(Copying, "_free_slot", not_waiting)
    with pytest.raises(SimulationError):
        multiply(tiles, transposed=False)
