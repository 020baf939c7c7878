"""How products are cut for Ampere, and their numbers with many columns for each program."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from test_ampere import A100, RTX_4090, assert_rounded, ids, problem
from test_mosaic_products import INTERPRETED
from test_products import normal

from pallas_kernels.mosaic import ampere, ampere_products
from pallas_kernels.mosaic.engine import SIDES


@pytest.mark.parametrize("capability", [A100, RTX_4090])
def test_a_cut_fits_shared_memory_and_registers(capability):
    memory = ampere.shared_memory_bytes(capability)
    for width, depth, n, rows in itertools.product(SIDES, SIDES, (128, 768, 3072, 16384), (1, 999)):
        tiles = ampere_products.tiles_of(width, depth, n // depth, rows, memory)
        if tiles is None:
            assert capability == RTX_4090
            assert (width, depth) == (128, 128)
            continue
        parts = n // depth if tiles.is_resident else tiles.stages
        entries = parts * tiles.rows * depth + tiles.stages * width * depth + tiles.rows * width
        assert 2 * entries < memory
        # Of 255 registers a thread the sums take this many.
        assert tiles.rows * width // 128 <= 64


def test_wide_panels_come_along_with_the_weights_and_narrow_ones_stay():
    memory = ampere.shared_memory_bytes(A100)
    assert ampere_products.tiles_of(32, 32, 384 // 32, 8192, memory) == ampere_products.Tiles(
        rows=64, stages=4, is_resident=True
    )
    wide = ampere_products.tiles_of(32, 32, 1536 // 32, 8192, memory)
    assert wide is not None
    assert not wide.is_resident


RESIDENT, STREAMED = 1 << 20, 48 << 10


@INTERPRETED
@pytest.mark.parametrize(
    ("block", "rows", "memory"),
    [
        ((32, 16), 150, RESIDENT),
        ((16, 64), 70, STREAMED),
        pytest.param((64, 32), 5, STREAMED, marks=pytest.mark.exhaustive),
        pytest.param((128, 64), 64, RESIDENT, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
@pytest.mark.parametrize("transposed", [False, True], ids=["product", "transposed"])
def test_products_of_the_kept_blocks_with_many_columns_for_each_program(
    block, rows, memory, transposed, monkeypatch
):
    monkeypatch.setattr(ampere_products, "PROGRAMS", 2)
    n_in, n_out = 11 * block[1], 5 * block[0]
    layer, mask = problem(block, n_in, n_out, 0.6)
    width, depth = block[::-1] if transposed else block
    n_blocks = (n_out if transposed else n_in) // depth
    tiles = ampere_products.tiles_of(width, depth, n_blocks, rows, memory)
    assert tiles is not None
    if memory == STREAMED and not transposed:
        assert not tiles.is_resident
    n, m = (n_out, n_in) if transposed else (n_in, n_out)
    x, w = normal(rows, n, dtype=jnp.bfloat16), normal(n_in, n_out, dtype=jnp.bfloat16, seed=1)
    bias = None if transposed else normal(m, dtype=jnp.bfloat16, seed=2)
    found = ampere_products.multiply(
        x,
        w,
        bias,
        ids(layer, mask),
        layer,
        transposed=transposed,
        interpret=True,
        memory_bytes=memory,
    )
    a, b = np.asarray(x).astype(np.float64), np.asarray(w).astype(np.float64) * mask
    b = b.T if transposed else b
    c = 0.0 if bias is None else np.asarray(bias).astype(np.float64)
    assert_rounded(found, a @ b + c, a**2 @ b**2 + c**2, n)
