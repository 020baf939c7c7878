"""What ways to cut the kernel's gradient cost on paper."""

import dataclasses
import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import SparseLayer
from pallas_kernels.lists import listed
from pallas_kernels.mosaic.gradient_cost import (
    by_cost,
    gradient_tiles_of,
    loaded_bytes,
    n_filled,
    seconds,
    summed_bytes,
    transposed_bytes,
)
from pallas_kernels.mosaic.gradient_tiles import DENSE, GradientTiles, search_space
from pallas_kernels.mosaic.groups import group

ROWS = 8192


def square(side: int, n_in: int, n_out: int) -> SparseLayer:
    n_kept = math.ceil((n_in // side) * (n_out // side) * 0.2)
    return SparseLayer((n_in, n_out), (side, side), n_kept, -1, "bfloat16")


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("n_together", [1, 2, 4, 8])
def test_loads_and_sums_are_those_of_groups_of_blocks_kept_at_random(n_together, by_rows):
    """Within the spread of a mask: the last group of a line is half empty in the mean."""
    layer, tiles = square(16, 1024, 4096), GradientTiles(n_together, 4, 132, by_rows)
    blocks = np.random.default_rng(0).permutation(64 * 256)[: layer.n_kept]
    kept = listed(jnp.asarray(np.sort(blocks), jnp.int32), (64, 256))
    groups = group(kept, (64, 256), n_together, by_rows=by_rows)
    lengths = np.asarray(groups.length)
    counted = int((lengths > 0).sum())
    n_lines = 64 if by_rows else 256
    assert n_filled(layer.n_kept, n_lines, n_together) == pytest.approx(counted, rel=0.03)
    loaded = (layer.n_kept + counted) * 16 * 2 * ROWS
    assert loaded_bytes(layer, ROWS, tiles) == pytest.approx(loaded, rel=0.02)
    # One share of the rows: there are more groups than programs are asked for.
    assert summed_bytes(layer, ROWS, tiles) == 2 * layer.n_kept * 16 * 16 * 4


def test_the_cut_of_the_shortest_time_is_taken_and_every_one_is_ranked():
    for side, shape in itertools.product((32, 64, 128), ((384, 1536), (1024, 4096))):
        layer = square(side, *shape)
        ranked = by_cost(layer, ROWS)
        assert set(ranked) == {*search_space(layer), DENSE}
        times = [seconds(layer, ROWS, tiles) for tiles in ranked]
        assert times == sorted(times)


def test_balanced_ways_by_columns_are_taken_but_for_few_kept_weights_and_instead_of_dense():
    assert gradient_tiles_of(square(32, 1024, 4096), ROWS) == DENSE
    small = square(128, 384, 1536)
    assert gradient_tiles_of(small, ROWS) == by_cost(small, ROWS)[0] != DENSE
    for side, shape in itertools.product((64, 128), ((768, 3072), (1024, 4096), (4096, 16384))):
        cut = gradient_tiles_of(square(side, *shape), ROWS)
        assert cut.balanced
        assert not cut.by_rows


@pytest.mark.parametrize("side", [32, 64, 128])
def test_no_time_is_shorter_than_loads_and_tensor_cores_allow(side):
    layer = square(side, 1024, 4096)
    flops = 2 * ROWS * layer.n_kept * side * side
    for tiles in search_space(layer):
        assert seconds(layer, ROWS, tiles) >= 0.999 * flops / 7.8e14
        assert seconds(layer, ROWS, tiles) >= loaded_bytes(layer, ROWS, tiles) / 5.5e12


def test_more_shares_of_the_rows_are_shorter_and_their_sums_longer():
    layer = square(128, 384, 1536)
    few, many = (GradientTiles(1, 4, programs, False) for programs in (132, 1056))
    assert summed_bytes(layer, ROWS, many) == 8 * summed_bytes(layer, ROWS, few)
    assert seconds(layer, ROWS, few) < seconds(layer, ROWS, many)
    # With few blocks and many rows a wave of programs is worth its sums.
    alone = SparseLayer((384, 1536), (128, 128), 1, -1, "bfloat16")
    one = GradientTiles(1, 4, 1, False)
    assert seconds(alone, 32 * ROWS, few) < seconds(alone, 32 * ROWS, one)


def test_blocks_computed_together_share_what_they_load_of_dy():
    layer = square(64, 4096, 16384)
    dense_column = layer.n_kept * (64 + 64 / 4) * 2 * ROWS
    found = loaded_bytes(layer, ROWS, GradientTiles(4, 4, 132, False))
    assert found == pytest.approx(dense_column, rel=0.05)
    alone = loaded_bytes(layer, ROWS, GradientTiles(1, 4, 132, False))
    assert alone == layer.n_kept * (64 + 64) * 2 * ROWS


@pytest.mark.parametrize(("n_in", "n_out"), [(384, 1536), (1536, 384), (4096, 1024)])
def test_of_narrow_blocks_the_operand_with_fewer_features_is_transposed(n_in, n_out):
    layer = square(32, n_in, n_out)
    tiles = next(tiles for tiles in by_cost(layer, ROWS) if tiles != DENSE)
    assert tiles.by_rows == (n_out < n_in)
    assert transposed_bytes(layer, ROWS, tiles) == 2 * ROWS * min(n_in, n_out) * 2


def test_narrow_blocks_are_left_to_xla_which_loads_less_for_all_of_dw():
    for shape in ((384, 1536), (1024, 4096), (4096, 16384)):
        assert gradient_tiles_of(square(32, *shape), ROWS) == DENSE
        assert gradient_tiles_of(square(64, *shape), ROWS) != DENSE


def test_nothing_is_transposed_for_blocks_of_64_and_both_operands_are_in_float32():
    layer = square(64, 384, 1536)
    for by_rows in (False, True):
        tiles = GradientTiles(1, 4, 132, by_rows)
        assert transposed_bytes(layer, ROWS, tiles) == 0
        wide = dataclasses.replace(layer, dtype="float32")
        assert transposed_bytes(wide, ROWS, tiles) == 2 * ROWS * (384 + 1536) * 4


def test_blocks_of_longer_lines_are_put_together_where_nothing_is_transposed():
    """Fewer lines have fewer groups that are half empty."""
    assert by_cost(square(64, 768, 3072), ROWS)[0].by_rows
    assert not by_cost(square(64, 3072, 768), ROWS)[0].by_rows
