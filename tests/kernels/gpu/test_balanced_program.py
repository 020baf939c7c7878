"""Gradients of a kernel and a bias by programs that have as much to do each."""

import sys

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
from pallas_kernels.lists import list_alike
from pallas_kernels.mosaic import balanced_shares, warpgroup
from pallas_kernels.mosaic.balanced_gradient import kernel_gradient, parameter_gradients
from pallas_kernels.mosaic.gradient_tiles import GradientTiles

__all__ = ["simulated"]

KEPT = [0, 1, 3, 8, 9]
CASES = [
    ((64, 64), "bfloat16", 300, 2, True, 3, False),
    ((64, 128), "bfloat16", 200, 2, False, 3, True),
    ((64, 64), "float32", 100, 2, False, 3, False),
    ((64, 64), "bfloat16", 300, 1, True, 4, False),
    ((64, 64), "bfloat16", 300, 2, False, 5, True),
    ((64, 64), "bfloat16", 40, 1, False, 9, False),
    ((128, 64), "bfloat16", 200, 1, True, 2, True),
    ((64, 128), "bfloat16", 200, 1, True, 3, False),
    ((128, 128), "bfloat16", 300, 1, True, 4, True),
    ((32, 32), "bfloat16", 300, 2, False, 3, False),
    ((32, 32), "bfloat16", 300, 4, False, 4, True),
    ((64, 32), "bfloat16", 200, 2, False, 3, False),
    ((16, 16), "bfloat16", 200, 4, False, 3, False),
    ((32, 32), "float32", 100, 2, False, 3, True),
    ((64, 64), "bfloat16", 500, 1, True, 2, True),
    ((64, 64), "bfloat16", 200, 1, False, 6, True),
    ((64, 64), "bfloat16", 500, 2, True, 132, False),
    ((32, 32), "bfloat16", 200, 2, False, 2, False),
]
NAMES = "block", "dtype", "rows", "n_together", "by_rows", "programs", "in_rounds"


@pytest.mark.thorough(after=1)
@INTERPRETED
@pytest.mark.parametrize(NAMES, CASES[:3], ids=str)
def test_what_programs_share_adds_up_to_the_whole(
    block, dtype, rows, n_together, by_rows, programs, in_rounds, monkeypatch
):
    if in_rounds:
        monkeypatch.setattr(balanced_shares, "CACHED_BYTES", 0)
    compute(block, dtype, rows, GradientTiles(n_together, 2, programs, by_rows, balanced=True))


@pytest.mark.thorough(after=6)
@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(NAMES, CASES, ids=str)
def test_each_buffer_of_a_simulated_hopper_is_whole_while_it_is_read(
    block, dtype, rows, n_together, by_rows, programs, in_rounds, monkeypatch
):
    if in_rounds:
        monkeypatch.setattr(balanced_shares, "CACHED_BYTES", 0)
    with jax.disable_jit():
        compute(block, dtype, rows, GradientTiles(n_together, 2, programs, by_rows, balanced=True))


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("by_rows", [False, True])
def test_steps_may_count_more_than_they_load(by_rows):
    tiles = GradientTiles(2, 2, 5, by_rows, balanced=True, beside=3)
    with jax.disable_jit():
        compute((64, 64), "bfloat16", 300, tiles)


@pytest.mark.usefixtures("simulated")
def test_a_simulated_hopper_notices_products_that_are_not_waited_for(monkeypatch):
    finish = warpgroup.finish_products
    monkeypatch.setattr(warpgroup, "finish_products", lambda n_left: finish(n_left + 1))
    tiles = GradientTiles(1, 2, 2, by_rows=True, balanced=True)
    with jax.disable_jit(), pytest.raises(SimulationError):
        compute((64, 64), "bfloat16", 700, tiles)


@pytest.mark.usefixtures("simulated")
def test_a_simulated_hopper_notices_results_that_are_overwritten_on_their_way(monkeypatch):
    finish = warpgroup.finish_writes

    def finish_at_the_end() -> None:
        if sys._getframe(1).f_code.co_name != "_write":
            finish()

    monkeypatch.setattr(warpgroup, "finish_writes", finish_at_the_end)
    tiles = GradientTiles(2, 2, 2, by_rows=False, balanced=True)
    with jax.disable_jit(), pytest.raises(AssertionError, match="not strictly ordered"):
        compute((32, 32), "bfloat16", 300, tiles)


def compute(block: tuple[int, int], dtype: str, rows: int, tiles: GradientTiles) -> None:
    """Both gradients of the second of two kernels are right, of five kept blocks of twelve.

    A row of four has three, the third two and the second none; the third column has none.
    """
    (height, width), n_kept = block[::-1], len(KEPT)
    n_in, n_out = 3 * height, 4 * width
    layer = SparseLayer((n_in, n_out), block, n_kept, -1, dtype)
    x, dy = normal(rows, n_in, dtype=dtype), normal(rows, n_out, dtype=dtype, seed=1)
    ids = jnp.asarray([[1, 2, 5, 7, 11], KEPT], jnp.int32)
    operands = x, dy, list_alike(ids, (3, 4))[1], layer, tiles
    dw, db = parameter_gradients(*operands, interpret=True)
    alone = kernel_gradient(*operands, interpret=True)
    a, b = (np.asarray(v).astype(np.float64) for v in (x, dy))
    mask = np.asarray(dense_mask(ids[1], layer.kernel_shape, block))
    for found in (dw, alone):
        check(found, (a.T @ b) * mask, np.sqrt(rows) * np.sqrt((a**2).T @ b**2), dtype)
        np.testing.assert_array_equal(np.asarray(found)[~mask], 0)
    assert db.dtype == jnp.dtype(dtype)
    check(db, b.sum(axis=0), np.sqrt(rows) * np.sqrt((b**2).sum(axis=0)), dtype)


def check(found: jax.Array, want: np.ndarray, scale: np.ndarray, dtype: str) -> None:
    """It is right but for the rounding of sums and of the result."""
    tolerance = 4 * EPS * scale + float(jnp.finfo(dtype).eps) / 2 * np.abs(want)
    np.testing.assert_array_less(
        np.abs(np.asarray(found).astype(np.float64) - want), tolerance + 1e-12
    )
