"""Products of panels as parts of kernels, and what tests of interpreted kernels are marked with."""

import types

import pytest

from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.product_program import Program
from pallas_kernels.mosaic.product_tiles import Tiles

INTERPRETED = pytest.mark.skipif(
    launch.missing(interpret=True) is not None, reason=str(launch.missing(interpret=True))
)
EXHAUSTIVE = pytest.mark.exhaustive


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_program_is_cut_as_its_share_is(pieces):
    tiles = Tiles(2, 1, 1, pieces=pieces, blocks=2, lines=1, stages=2)
    program = object.__new__(Program)
    object.__setattr__(program, "share", types.SimpleNamespace(tiles=tiles))
    assert program.tiles is tiles
    assert program.is_whole == (pieces == 1)
