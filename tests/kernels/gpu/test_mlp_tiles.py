"""How two fused layers are cut on Hopper."""

import itertools

import pytest

from pallas_kernels import SparseLayer
from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.mlp_tiles import (
    APART,
    MlpTiles,
    Pair,
    is_fusable,
    pair_of,
    search_space,
)
from pallas_kernels.mosaic.product_tiles import ROWS


def layers(
    width: int, side: int, dtype: str = "bfloat16", hidden: int | None = None
) -> tuple[SparseLayer, SparseLayer]:
    """Layers of a channel MLP with square blocks, a fifth of which is kept."""
    hidden = hidden or 4 * width
    n_kept = max(1, width * hidden // side**2 // 5)
    there = SparseLayer((width, hidden), (side, side), n_kept, -1, dtype)
    return there, SparseLayer((hidden, width), (side, side), n_kept, -1, dtype)


def pair(width: int, side: int, dtype: str = "bfloat16", n_rows: int = 8192) -> Pair:
    return pair_of(layers(width, side, dtype), n_rows)


def test_layers_that_lead_back_by_turned_blocks_are_fusable():
    def layer(shape: tuple[int, int], block: tuple[int, int]) -> SparseLayer:
        return SparseLayer(shape, block, 3, -1, "bfloat16")

    assert is_fusable(layers(384, 32))
    assert is_fusable((layer((128, 512), (64, 32)), layer((512, 128), (32, 64))))
    assert not is_fusable((layer((128, 512), (64, 32)), layer((512, 128), (64, 32))))
    assert not is_fusable((layer((128, 512), (32, 32)), layer((512, 256), (32, 32))))


@pytest.mark.parametrize(
    ("width", "side", "dtype"),
    [(64, 16, "bfloat16"), (64, 32, "float32"), (256, 64, "bfloat16"), (384, 32, "float32")],
)
def test_every_cut_covers_all_units_and_outputs_and_fits_memory(width, side, dtype):
    its = pair(width, side, dtype)
    found = list(search_space(its))
    assert found
    assert APART not in found
    for tiles in found:
        assert tiles.blocks % tiles.abreast == 0
        assert tiles.lines * tiles.abreast >= its.second.n_lines
        # Every piece has units: without the last one they would not be all.
        assert (tiles.pieces - 1) * tiles.blocks < its.first.n_lines
        assert tiles.pieces * tiles.blocks >= its.first.n_lines
        itemsize = 2 if dtype == "bfloat16" else 4
        blocks = tiles.inputs * tiles.first.rows * side + 2 * tiles.stages * tiles.abreast * side**2
        units = tiles.buffers * tiles.blocks * tiles.first.rows * side
        staging = tiles.n_compute * ROWS * side
        assert (blocks + units + staging) * itemsize <= launch.SHARED_MEMORY_BYTES
        assert tiles.lines * side // 2 + side // 2 < launch.registers(tiles.n_compute)


@pytest.mark.parametrize(("width", "side", "dtype"), [(768, 64, "bfloat16"), (384, 64, "float32")])
def test_outputs_that_registers_do_not_hold_have_no_cut(width, side, dtype):
    assert list(search_space(pair(width, side, dtype))) == []


def test_a_cut_covers_its_pair_and_neither_the_way_back_nor_wider_layers():
    its, back = pair(256, 64), pair_of(layers(1024, 64, hidden=256), 8192)
    for tiles in search_space(its):
        assert tiles.covers(its)
        assert not tiles.covers(back)
        assert not tiles.covers(pair(512, 64))


def test_pieces_take_the_room_there_is():
    cuts = list(search_space(pair(384, 32)))
    alike = itertools.groupby(cuts, key=lambda t: (t.n_compute, t.abreast, t.cluster))
    for _, group in alike:
        by_ring = {tiles.stages: tiles.blocks for tiles in group}
        assert [by_ring[n] for n in sorted(by_ring)] == sorted(by_ring.values(), reverse=True)


def test_what_both_products_see_of_a_cut():
    tiles = MlpTiles(4, 2, 2, pieces=3, blocks=6, inputs=5, lines=2, stages=4)
    assert tiles.first.rows == tiles.second.rows == 2 * ROWS
    assert (tiles.first.pieces, tiles.first.blocks, tiles.first.group) == (1, 5, 2)
    assert (tiles.second.pieces, tiles.second.blocks, tiles.second.group) == (3, 6, 4)
    assert (tiles.turns, tiles.buffers) == (3, 2)
