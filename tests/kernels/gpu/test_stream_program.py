"""Programs of products on Hopper: what arrives is whole while it is read, and no more comes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from simulated_hopper import LOADED, careless, simulated
from simulated_memory import SimulationError
from test_product_program import INTERPRETED
from test_products import EPS, normal

from pallas_kernels import SparseLayer
from pallas_kernels.layout import dense_mask
from pallas_kernels.mosaic import launch, products, warpgroup
from pallas_kernels.mosaic.stream_program import Program
from pallas_kernels.mosaic.stream_tiles import StreamTiles

__all__ = ["simulated"]

CUTS = [
    StreamTiles(1, 1, 1, stages=2),
    StreamTiles(2, 1, 1, stages=3),
    StreamTiles(1, 1, 2, stages=2),
    StreamTiles(2, 1, 2, stages=4),
    StreamTiles(4, 1, 1, stages=2),
    StreamTiles(2, 2, 2, stages=3),
    StreamTiles(4, 2, 1, stages=2),
]
EVERY_CUT = pytest.mark.parametrize("tiles", CUTS, ids=str)
BOTH = pytest.mark.parametrize("transposed", [False, True], ids=["product", "transposed"])
ROWS = 140
"""Not whole tiles of any cut."""


def multiply(
    tiles: StreamTiles,
    *,
    transposed: bool,
    dtype: str = "bfloat16",
    block: tuple[int, int] = (32, 32),
    with_gelu: bool = False,
) -> SparseLayer:
    """A product of six blocks by five, one column of which keeps none, is as it should be."""
    rows, cols = block
    down, across = (5, 6) if transposed else (6, 5)
    grid = np.random.default_rng(0).uniform(size=(6, 5)) < 0.4
    grid[:, 1] = False
    kept = jnp.asarray(np.flatnonzero(grid.T if transposed else grid), jnp.int32)
    layer = SparseLayer((cols * down, rows * across), block, kept.size, -1, dtype)
    n_in, n_out = layer.kernel_shape[::-1] if transposed else layer.kernel_shape
    x, w = normal(ROWS, n_in, dtype=dtype), normal(*layer.kernel_shape, dtype=dtype, seed=1)
    bias = None if transposed else normal(n_out, dtype=dtype, seed=2)
    found = products.multiply(
        x,
        w,
        bias,
        kept,
        layer,
        tiles,
        transposed=transposed,
        interpret=True,
        with_gelu=with_gelu,
    )
    mask = np.asarray(dense_mask(kept, layer.kernel_shape, layer.block))
    a, b = np.asarray(x, np.float64), np.asarray(w, np.float64) * mask
    want = a @ (b.T if transposed else b)
    want = want if bias is None else want + np.asarray(bias, np.float64)
    atol = 4 * EPS * np.sqrt(n_in) * np.abs(want).max()
    if with_gelu:
        want = np.asarray(jax.nn.gelu(jnp.asarray(want, jnp.float32), approximate=False))
    rtol = float(jnp.finfo(dtype).eps) / 2
    np.testing.assert_allclose(np.asarray(found, np.float64), want, rtol=rtol, atol=atol)
    return layer


@pytest.mark.thorough(after=2)
@INTERPRETED
@BOTH
@pytest.mark.parametrize(
    ("tiles", "block", "dtype"),
    [
        (CUTS[1], (32, 32), "bfloat16"),
        (CUTS[3], (16, 64), "bfloat16"),
        (CUTS[2], (64, 128), "bfloat16"),
        (CUTS[0], (32, 64), "float32"),
        (CUTS[5], (32, 32), "bfloat16"),
    ],
    ids=str,
)
def test_many_tiles_through_a_short_ring_give_the_same_sums(
    tiles, block, dtype, transposed, monkeypatch
):
    """Three programs have all tiles; a block of 128 features is multiplied in two steps."""
    monkeypatch.setattr(launch, "multiprocessors", lambda: 3)
    multiply(tiles, transposed=transposed, dtype=dtype, block=block)


def through_gelu(tiles: StreamTiles, dtype: str, block: tuple[int, int]) -> None:
    """Hidden units after GELU and the gradient before it are those of float64."""
    rows, cols = block
    grid = np.random.default_rng(0).uniform(size=(5, 6)) < 0.4
    grid[1] = False
    kept = jnp.asarray(np.flatnonzero(grid), jnp.int32)
    layer = SparseLayer((cols * 5, rows * 6), block, kept.size, -1, dtype)
    dy, w = normal(ROWS, rows * 6, dtype=dtype), normal(*layer.kernel_shape, dtype=dtype, seed=1)
    before = normal(ROWS, cols * 5, dtype=dtype, seed=2)
    units, gradient = products.through_gelu(dy, w, before, kept, layer, tiles, interpret=True)
    mask = np.asarray(dense_mask(kept, layer.kernel_shape, layer.block))
    after = np.asarray(dy, np.float64) @ (np.asarray(w, np.float64) * mask).T
    h = np.asarray(before, np.float32)
    want = np.asarray(jax.nn.gelu(h, approximate=False), np.float64)
    slope = np.asarray(jax.vmap(jax.vmap(jax.grad(exact_gelu)))(jnp.asarray(h)), np.float64)
    eps = float(jnp.finfo(dtype).eps) / 2
    np.testing.assert_allclose(np.asarray(units, np.float64), want, rtol=eps, atol=1e-6)
    atol = 4 * EPS * np.sqrt(rows * 6) * np.abs(after).max() + 1e-6 * np.abs(after).max()
    np.testing.assert_allclose(np.asarray(gradient, np.float64), after * slope, rtol=eps, atol=atol)


def exact_gelu(h: jax.Array) -> jax.Array:
    return jax.nn.gelu(h, approximate=False)


@INTERPRETED
@pytest.mark.parametrize(
    ("tiles", "dtype", "block"),
    [(CUTS[5], "bfloat16", (32, 32)), (CUTS[2], "float32", (16, 64))],
    ids=str,
)
def test_hidden_units_come_in_and_their_gradient_goes_out(tiles, dtype, block, monkeypatch):
    monkeypatch.setattr(launch, "multiprocessors", lambda: 3)
    through_gelu(tiles, dtype, block)


@pytest.mark.usefixtures("simulated")
@EVERY_CUT
def test_hidden_units_of_a_simulated_hopper_are_whole_while_they_are_read(tiles, monkeypatch):
    monkeypatch.setattr(launch, "multiprocessors", lambda: 2)
    with jax.disable_jit():
        through_gelu(tiles, "bfloat16", (32, 32))


@pytest.mark.usefixtures("simulated")
def test_a_simulated_hopper_notices_hidden_units_that_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(warpgroup, "wait", careless("staged"))
    with jax.disable_jit(), pytest.raises((SimulationError, AssertionError)):
        through_gelu(CUTS[0], "bfloat16", (32, 32))


@INTERPRETED
def test_gelu_is_that_of_the_sums():
    multiply(CUTS[1], transposed=False, dtype="float32", with_gelu=True)


@pytest.mark.usefixtures("simulated")
@BOTH
@EVERY_CUT
def test_each_buffer_of_a_simulated_hopper_is_whole_and_loaded_once_for_a_tile_of_rows(
    tiles, transposed, monkeypatch
):
    """A kept block and the rows that meet it, and no other, in either order of the tiles."""
    monkeypatch.setattr(launch, "multiprocessors", lambda: 2)
    monkeypatch.setattr(products, "CACHED_BYTES", 0 if transposed else products.CACHED_BYTES)
    with jax.disable_jit():
        layer = multiply(tiles, transposed=transposed)
    n_tiles = tiles.n_row_tiles(ROWS)
    size = jnp.dtype(layer.dtype).itemsize
    assert LOADED["operand 5"] == n_tiles * layer.n_kept * 32 * 32 * size
    assert LOADED["operand 4"] == n_tiles * layer.n_kept * tiles.rows * 32 * size


@pytest.mark.usefixtures("simulated")
def test_a_block_of_more_features_than_a_step_is_read_in_parts_on_a_simulated_hopper():
    with jax.disable_jit():
        multiply(CUTS[1], transposed=True, block=(128, 32))


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("more", [1, 2])
def test_a_simulated_hopper_notices_products_that_are_not_waited_for(more, monkeypatch):
    finish = warpgroup.finish_products
    monkeypatch.setattr(warpgroup, "finish_products", lambda n_left: finish(n_left + more))
    with jax.disable_jit(), pytest.raises(SimulationError):
        multiply(CUTS[0], transposed=False)


@pytest.mark.usefixtures("simulated")
def test_a_simulated_hopper_notices_operands_that_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(warpgroup, "wait", careless("full"))
    with jax.disable_jit(), pytest.raises((SimulationError, AssertionError)):
        multiply(CUTS[0], transposed=True)


@pytest.mark.usefixtures("simulated")
def test_a_simulated_hopper_notices_buffers_that_are_filled_too_early(monkeypatch):
    monkeypatch.setattr(Program, "_free_slot", Program.slot)
    with jax.disable_jit(), pytest.raises(SimulationError):
        multiply(CUTS[0], transposed=False)


@pytest.mark.usefixtures("simulated")
def test_a_simulated_hopper_notices_buffers_that_are_never_given_back(monkeypatch):
    arrive = warpgroup.arrive

    def forgetful(barrier: Any) -> None:
        if barrier.name != "free":
            arrive(barrier)

    monkeypatch.setattr(warpgroup, "arrive", forgetful)
    with jax.disable_jit(), pytest.raises(SimulationError, match="never opens"):
        multiply(CUTS[2], transposed=False)
