"""Hidden units and their gradient on Hopper: two products whose sums meet in registers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pairs
import pytest
from simulated_hopper import LOADED, careless, simulated
from simulated_memory import SimulationError
from test_product_program import EXHAUSTIVE, INTERPRETED

from pallas_kernels import Weights
from pallas_kernels.layout import kept_grid
from pallas_kernels.lists import list_alike
from pallas_kernels.mosaic import hidden, warpgroup
from pallas_kernels.mosaic.hidden_tiles import HiddenTiles

__all__ = ["simulated"]
SQUARE = ((32, 32), (32, 32))
WHOLE = HiddenTiles(2, 1, 1, pieces=1, blocks=3, lines=1, stages=2)
ALONE = HiddenTiles(1, 1, 1, pieces=1, blocks=3, lines=1, stages=2)
IN_PIECES = HiddenTiles(2, 2, 1, pieces=2, blocks=2, lines=2, stages=2)
"""The last of the pieces has one block alone, the last group of columns no second rank."""
CUTS = [
    WHOLE,
    IN_PIECES,
    # Two warpgroups above each other; the second program of the cluster has few rows.
    HiddenTiles(4, 2, 2, pieces=3, blocks=1, lines=1, stages=4),
    HiddenTiles(4, 4, 1, pieces=1, blocks=3, lines=1, stages=2),
    # Three of four programs have rows.
    HiddenTiles(1, 1, 4, pieces=2, blocks=2, lines=3, stages=16),
]


def compute(
    tiles: HiddenTiles, n_units: int = 224, dtype: str = "float32", n_rows: int = 140
) -> Any:
    """Hidden units and their gradient are as they should be.

    Returns:
      The pair of layers.
    """
    pair = pairs.draw(SQUARE, n_rows=n_rows, width=96, hidden=n_units, dtype=dtype)
    operands = (pair.x, pair.dy, pair.weights, pair.layers, tiles)
    units, gradient = hidden.hidden_units(*operands, interpret=True)
    assert units.dtype == gradient.dtype == jnp.dtype(dtype)
    pairs.assert_near(pair, units=units, dunits=gradient)
    return pair


@pytest.mark.thorough(after=2)
@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("tiles", CUTS, ids=str)
def test_each_buffer_of_a_simulated_hopper_is_whole_while_it_is_read(tiles):
    """And in float32 below."""
    with jax.disable_jit():
        compute(tiles, 256, "bfloat16")


@pytest.mark.thorough(after=1)
@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("tiles", [WHOLE, IN_PIECES], ids=str)
def test_few_rows_share_out_the_columns_among_programs(tiles):
    with jax.disable_jit():
        compute(tiles, n_rows=5)


@pytest.mark.usefixtures("simulated")
def test_layers_without_bias_whose_blocks_are_each_others_turned():
    pair = pairs.draw(((64, 32), (32, 64)), n_rows=70, width=96, hidden=256)
    (w1, bias, kept), second = pair.weights
    with jax.disable_jit():
        found, without, with_zeros = (
            hidden.hidden_units(
                pair.x,
                pair.dy,
                (Weights(w1, own, kept), second),
                pair.layers,
                HiddenTiles(2, 1, 1, pieces=2, blocks=2, lines=1, stages=2),
                interpret=True,
            )
            for own in (bias, None, jnp.zeros_like(bias))
        )
    pairs.assert_near(pair, units=found[0], dunits=found[1])
    jax.tree.map(np.testing.assert_array_equal, without, with_zeros)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("tiles", [WHOLE, IN_PIECES], ids=str)
def test_lists_that_were_made_with_those_of_other_layers_change_no_bit(tiles):
    pair = pairs.draw(SQUARE, n_rows=70, width=96, hidden=256)

    def with_lists(own: Weights, grid_shape: tuple[int, int], place: int) -> Weights:
        kept = [jnp.arange(own.kept.size, dtype=jnp.int32)] * 2
        kept[place] = own.kept
        return own._replace(kept=list_alike(jnp.stack(kept), grid_shape)[place])

    first, second = pair.weights
    listed = with_lists(first, (3, 8), 1), with_lists(second, (8, 3), 0)
    with jax.disable_jit():
        found, wanted = (
            hidden.hidden_units(pair.x, pair.dy, weights, pair.layers, tiles, interpret=True)
            for weights in (listed, pair.weights)
        )
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("tiles", CUTS, ids=str)
def test_kept_blocks_are_loaded_once_for_a_cluster_and_are_whole_while_they_are_read(tiles):
    with jax.disable_jit():
        pair = compute(tiles)
    n_clusters = -(-140 // (tiles.rows * tiles.cluster))
    blocks = [own.kept.size for own in pair.weights]
    found = [LOADED["operand 12"], LOADED["operand 13"]]
    assert found == [n_clusters * n * 32 * 32 * 4 for n in blocks]


@pytest.mark.usefixtures("simulated")
def test_a_program_loads_a_whole_panel_once_and_of_one_in_pieces_what_it_needs():
    panels = ["operand 10", "operand 11"]
    with jax.disable_jit():
        compute(WHOLE)
        n_programs = 2 * 7
        assert [LOADED[name] for name in panels] == [n_programs * 128 * 96 * 4] * 2
        LOADED.clear()
        tiles = dataclasses.replace(IN_PIECES, lines=1)
        pair = compute(tiles)
    n_tiles = 3
    for name, own, shape in zip(panels, pair.weights, ((3, 7), (7, 3)), strict=True):
        grid = np.asarray(kept_grid(own.kept, shape))
        by_column = grid.T if shape[0] == 3 else grid
        groups = np.pad(by_column, ((0, 1), (0, 0))).reshape(4, 2, 3).any(axis=1)
        assert not groups.all()
        assert LOADED[name] == n_tiles * groups.sum() * 64 * 32 * 4


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(
    ("name", "tiles"),
    [
        ("panel_x_full", ALONE),
        ("panel_dy_full", ALONE),
        ("panel_full", IN_PIECES),
        ("panel_free", IN_PIECES),
        ("ring1_full", IN_PIECES),
        ("ring2_full", IN_PIECES),
        ("ring1_free", WHOLE),
        ("ring2_free", WHOLE),
    ],
)
def test_a_simulated_hopper_notices_operands_that_are_not_waited_for(name, tiles, monkeypatch):
    monkeypatch.setattr(warpgroup, "wait", careless(name))
    with jax.disable_jit(), pytest.raises((SimulationError, AssertionError)):
        compute(tiles)


@pytest.mark.thorough(after=1)
@INTERPRETED
@pytest.mark.parametrize(
    ("tiles", "dtype"),
    [
        (IN_PIECES, "bfloat16"),
        (WHOLE, "float32"),
        *(
            pytest.param(tiles, dtype, marks=EXHAUSTIVE)
            for tiles in CUTS
            for dtype in ("bfloat16", "float32")
            if (tiles, dtype) not in ((IN_PIECES, "bfloat16"), (WHOLE, "float32"))
        ),
    ],
    ids=str,
)
def test_an_interpreted_program_gives_the_same_and_has_no_races(tiles, dtype):
    compute(tiles, dtype=dtype)
