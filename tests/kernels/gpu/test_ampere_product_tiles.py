"""How products are cut for the shared memory of Ampere."""

import itertools

import pytest
from test_ampere import A100, RTX_4090

from pallas_kernels.mosaic.ampere import shared_memory_bytes
from pallas_kernels.mosaic.ampere_product_tiles import Tiles, tiles_of
from pallas_kernels.tensor_cores import SIDES


@pytest.mark.parametrize("capability", [A100, RTX_4090])
def test_a_cut_fits_shared_memory_and_registers(capability):
    memory = shared_memory_bytes(capability)
    for width, depth, n, rows in itertools.product(SIDES, SIDES, (128, 768, 3072, 16384), (1, 999)):
        tiles = tiles_of(width, depth, n // depth, rows, memory)
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
    memory = shared_memory_bytes(A100)
    assert tiles_of(32, 32, 384 // 32, 8192, memory) == Tiles(rows=64, stages=4, is_resident=True)
    wide = tiles_of(32, 32, 1536 // 32, 8192, memory)
    assert wide is not None
    assert not wide.is_resident
