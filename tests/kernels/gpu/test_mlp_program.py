"""Two fused layers on Hopper: hidden units are whole when they are read, and never in memory."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pairs
import pytest
from simulated_hopper import LOADED, careless, simulated
from simulated_memory import SimulationError
from simulated_warpgroups import HERE
from test_product_program import EXHAUSTIVE, INTERPRETED

from pallas_kernels import Weights
from pallas_kernels.layout import kept_grid
from pallas_kernels.lists import list_alike
from pallas_kernels.mosaic import mlp, warpgroup
from pallas_kernels.mosaic.mlp_tiles import MlpTiles

__all__ = ["simulated"]
SQUARE = ((32, 32), (32, 32))
WHOLE = MlpTiles(1, 1, 1, pieces=1, blocks=8, inputs=3, lines=3, stages=2)
IN_PIECES = MlpTiles(2, 2, 1, pieces=4, blocks=2, inputs=3, lines=2, stages=2)
"""Of two columns abreast the last one of outputs has no neighbour."""
CUTS = [
    WHOLE,
    IN_PIECES,
    # Two warpgroups above each other; the second program of the cluster has few rows.
    MlpTiles(4, 2, 2, pieces=2, blocks=6, inputs=3, lines=2, stages=4),
    # Fewer columns of outputs than warpgroups.
    MlpTiles(4, 4, 1, pieces=1, blocks=8, inputs=3, lines=1, stages=2),
    # Three of four programs have rows; the last of the pieces is short.
    MlpTiles(1, 1, 4, pieces=3, blocks=3, inputs=3, lines=3, stages=16),
]


def compute(tiles: MlpTiles, hidden: int = 256, dtype: str = "float32", **changes: Any) -> Any:
    """The result of a pair of layers with 140 rows is as it should be.

    What is rounded to bfloat16 may be off by as much as a block that is missing changes: mistakes
    are looked for in float32.

    Returns:
      The pair.
    """
    pair = pairs.draw(SQUARE, n_rows=140, width=96, hidden=hidden, dtype=dtype)
    options = {"residual": True, "interpret": True} | changes
    y = mlp.mlp(pair.x, pair.weights, pair.layers, tiles, **options)
    pairs.assert_near(pair, y=y if options["residual"] else y + pair.x)
    return pair


@pytest.mark.thorough(after=3)
@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(
    ("tiles", "hidden", "dtype"),
    [
        *((tiles, 224, "float32") for tiles in CUTS),
        *((tiles, 256, "bfloat16") for tiles in (WHOLE, IN_PIECES)),
    ],
    ids=str,
)
def test_each_buffer_of_a_simulated_hopper_is_whole_while_it_is_read(tiles, hidden, dtype):
    with jax.disable_jit():
        compute(tiles, hidden, dtype)


@pytest.mark.usefixtures("simulated")
def test_x_is_added_only_where_it_is_asked_for():
    with jax.disable_jit():
        compute(IN_PIECES, residual=False)


@pytest.mark.usefixtures("simulated")
def test_layers_without_bias_whose_blocks_are_each_others_turned():
    pair = pairs.draw(((64, 32), (32, 64)), n_rows=70, width=96, hidden=256)
    tiles = MlpTiles(2, 1, 1, pieces=2, blocks=2, inputs=3, lines=3, stages=2)
    own_biases, no_biases, zeros = (
        tuple(own._replace(bias=bias(own.bias)) for own in pair.weights)
        for bias in (lambda b: b, lambda _: None, jnp.zeros_like)
    )
    with jax.disable_jit():
        y, without, with_zeros = (
            mlp.mlp(pair.x, weights, pair.layers, tiles, residual=True, interpret=True)
            for weights in (own_biases, no_biases, zeros)
        )
    pairs.assert_near(pair, y=y)
    np.testing.assert_array_equal(without, with_zeros)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("tiles", [WHOLE, IN_PIECES], ids=str)
def test_lists_that_were_made_with_those_of_other_layers_change_no_bit(tiles):
    pair = pairs.draw(SQUARE, n_rows=70, width=96, hidden=256)

    def with_lists(own: Weights, grid_shape: tuple[int, int]) -> Weights:
        others = jnp.arange(own.kept.size, dtype=jnp.int32)
        return own._replace(kept=list_alike(jnp.stack([others, own.kept]), grid_shape)[1])

    first, second = pair.weights
    listed = with_lists(first, (3, 8)), with_lists(second, (8, 3))
    with jax.disable_jit():
        found, wanted = (
            mlp.mlp(pair.x, weights, pair.layers, tiles, residual=True, interpret=True)
            for weights in (listed, pair.weights)
        )
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("tiles", CUTS, ids=str)
def test_kept_blocks_are_loaded_once_for_a_cluster_and_those_of_unused_units_never(tiles):
    with jax.disable_jit():
        pair = compute(tiles)
    n_clusters = -(-140 // (tiles.first.rows * tiles.cluster))
    first, second = pair.weights
    kept1, kept2 = np.asarray(kept_grid(first.kept, (3, 8))), kept_grid(second.kept, (8, 3))
    is_used = np.asarray(kept2.any(axis=1))
    assert kept1[:, ~is_used].any()
    n_blocks = [int(kept1[:, is_used].sum()), int(kept2.sum())]
    found = [LOADED["operand 10"], LOADED["operand 11"]]
    assert found == [n_clusters * n * 32 * 32 * 4 for n in n_blocks]


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("name", ["hidden_full", "panel_full", "ring1_full", "ring2_full"])
def test_a_simulated_hopper_notices_operands_that_are_not_waited_for(name, monkeypatch):
    monkeypatch.setattr(warpgroup, "wait", careless(name))
    with jax.disable_jit(), pytest.raises((SimulationError, AssertionError)):
        compute(WHOLE if name == "panel_full" else IN_PIECES)


@pytest.mark.usefixtures("simulated")
def test_a_simulated_hopper_notices_units_that_tensor_cores_do_not_see_yet(monkeypatch):
    monkeypatch.setattr(warpgroup, "meet", lambda: None)
    with jax.disable_jit(), pytest.raises((SimulationError, AssertionError)):
        compute(WHOLE)


@pytest.mark.usefixtures("simulated")
def test_a_simulated_hopper_notices_units_that_are_stored_over_those_that_are_read(monkeypatch):
    """A long ring lets a warpgroup hurry ahead of the one beside it, which is slow."""
    start = warpgroup.start_product

    def start_late(*operands: Any) -> None:
        for _ in range(200 * HERE.warpgroup.number):
            HERE.cluster.take_turns()
        start(*operands)

    monkeypatch.setattr(warpgroup, "start_product", start_late)
    tiles = dataclasses.replace(IN_PIECES, stages=16)
    with jax.disable_jit():
        compute(tiles)
    monkeypatch.setattr(MlpTiles, "buffers", 1)
    with jax.disable_jit(), pytest.raises((SimulationError, AssertionError)):
        compute(tiles)


@pytest.mark.thorough(after=1)
@INTERPRETED
@pytest.mark.parametrize(
    ("tiles", "dtype"),
    [
        (IN_PIECES, "bfloat16"),
        (IN_PIECES, "float32"),
        *(
            pytest.param(tiles, dtype, marks=EXHAUSTIVE)
            for tiles in CUTS
            if tiles != IN_PIECES
            for dtype in ("bfloat16", "float32")
        ),
    ],
    ids=str,
)
def test_an_interpreted_program_gives_the_same_and_has_no_races(tiles, dtype):
    compute(tiles, dtype=dtype)
