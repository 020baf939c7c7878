"""How hidden units and their gradient are cut on Hopper."""

import pytest
from test_mlp_tiles import layers

from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.hidden_tiles import APART, Hidden, hidden_of, search_space
from pallas_kernels.mosaic.product_tiles import ROWS


def hidden(width: int, side: int, dtype: str = "bfloat16", n_rows: int = 8192) -> Hidden:
    return hidden_of(layers(width, side, dtype), n_rows)


def test_both_products_contract_as_many_features_to_the_same_units():
    units, gradient = hidden(64, 32)
    assert units == gradient
    assert (units.n_blocks, units.n_lines, units.width, units.depth) == (2, 8, 32, 32)
    first, second = layers(64, 32)
    oblong = [
        type(own)(own.kernel_shape, block, n_kept, -1, own.dtype)
        for own, block, n_kept in ((first, (64, 16), 3), (second, (16, 64), 5))
    ]
    units, gradient = hidden_of((oblong[0], oblong[1]), 10)
    assert units._replace(n_kept=5) == gradient
    assert (units.n_blocks, units.n_lines, units.width, units.depth) == (4, 4, 64, 16)


@pytest.mark.parametrize(
    ("width", "side", "dtype"),
    [(64, 16, "bfloat16"), (64, 32, "float32"), (384, 64, "bfloat16"), (768, 64, "bfloat16")],
)
def test_every_cut_has_room_for_two_rings_panels_and_sums(width, side, dtype):
    its = hidden(width, side, dtype)
    found = list(search_space(its))
    assert found
    assert APART not in found
    itemsize = 2 if dtype == "bfloat16" else 4
    for tiles in found:
        assert tiles.covers(its)
        rings = 2 * tiles.stages * tiles.abreast * side**2
        # Two panels that stay, or two buffers for pieces of either.
        panels = 2 * tiles.blocks * tiles.rows * side
        staging = 2 * tiles.n_compute * ROWS * side
        assert (rings + panels + staging) * itemsize <= launch.SHARED_MEMORY_BYTES
        assert 2 * tiles.lines * side // 2 + side // 2 < launch.registers(tiles.n_compute)
        assert tiles.lines == 1 or tiles.lines * tiles.abreast <= 4
        assert tiles.pieces > 1 or tiles.lines == 1
    assert {tiles.pieces == 1 for tiles in found} == ({True, False} if width < 768 else {False})


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_blocks_whose_two_sums_leave_no_registers_have_no_cut(dtype):
    assert list(search_space(hidden(384, 128, dtype))) == []


def test_a_cut_covers_its_inputs_and_no_more():
    its, back = hidden(256, 64), hidden_of(layers(1024, 64, hidden=256), 8192)
    for tiles in search_space(its):
        assert tiles.covers(its)
        assert not tiles.covers(back)
        assert not tiles.covers(hidden(1024, 64))
    for tiles in search_space(back):
        assert not tiles.covers(its)
