"""Engine `mosaic` on two layers: GELU on the way to memory, hidden units that are not kept."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pairs
import pytest
from test_ampere import A100
from test_product_program import INTERPRETED

from pallas_kernels import Mosaic, SparseLayer, tuning
from pallas_kernels.mosaic import hidden, hidden_cost, hidden_tiles, mlp_cost, mlp_tiles
from pallas_kernels.mosaic.hidden_tiles import HiddenTiles
from pallas_kernels.mosaic.mlp_tiles import MlpTiles
from pallas_kernels.mosaic.support import HOPPER

BLOCKS = ((32, 32), (32, 64))


@pytest.mark.parametrize(("axis", "is_fused"), [(-1, True), (-2, False)])
def test_layers_along_the_features_are_fused(axis, is_fused):
    layer = SparseLayer((384, 384), (32, 32), 5, axis, "bfloat16")
    assert Mosaic().fuses(layer, layer) == is_fused


@pytest.mark.parametrize("blocks", [BLOCKS, ((32, 32), (32, 32))], ids=["apart", "fusable"])
def test_nothing_in_is_nothing_out(blocks):
    pair = pairs.draw(blocks, n_rows=1, width=96, hidden=256)
    empty = jnp.zeros((2, 0, 96))
    engine = Mosaic(interpret=True)
    assert engine.mlp(empty, pair.weights, pair.layers, True).shape == empty.shape
    dx, gradients = engine.mlp_gradients(empty, empty, pair.weights, pair.layers, True)
    assert dx.shape == empty.shape
    for gradient in jax.tree.leaves(gradients):
        np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize(
    ("tiles_of", "cut"),
    [
        (mlp_cost.tiles_of, MlpTiles(1, 1, 1, pieces=2, blocks=4, inputs=2, lines=2, stages=2)),
        (hidden_cost.tiles_of, HiddenTiles(1, 1, 1, pieces=1, blocks=2, lines=1, stages=2)),
    ],
    ids=["mlp", "hidden"],
)
def test_a_measured_cut_that_covers_another_pair_is_not_taken(tiles_of, cut):
    """A table knows 64 -> 256 -> 64 and 256 -> 64 -> 256 by the same two widths."""
    there = SparseLayer((64, 256), (32, 32), 4, -1, "bfloat16")
    back = SparseLayer((256, 64), (32, 32), 4, -1, "bfloat16")
    problem = there.problem("mosaic", 1, "mlp", 8192)
    with tuning.forced(cut):
        assert tiles_of((there, back), problem) == cut
        assert tiles_of((back, there), problem) != cut


@pytest.mark.parametrize(
    ("cost", "pair_of", "apart"),
    [
        (mlp_cost, mlp_tiles.pair_of, mlp_tiles.APART),
        (hidden_cost, hidden_tiles.hidden_of, hidden_tiles.APART),
    ],
    ids=["mlp", "hidden"],
)
def test_a_pair_is_not_fused_where_that_was_measured_or_its_blocks_do_not_lead_back(
    cost, pair_of, apart
):
    there = SparseLayer((64, 256), (32, 16), 4, -1, "bfloat16")
    back = SparseLayer((256, 64), (16, 32), 4, -1, "bfloat16")
    problem = there.problem("mosaic", 1, "mlp", 8192)
    fused = next(cut for cut in cost.by_cost(pair_of((there, back), 8192)) if cut != apart)
    with tuning.forced(fused):
        assert cost.tiles_of((there, back), problem) == fused
        oblong = dataclasses.replace(back, block=(32, 16))
        assert cost.tiles_of((there, oblong), problem) is None
    with tuning.forced(apart):
        assert cost.tiles_of((there, back), problem) is None


@INTERPRETED
def test_the_result_on_hopper():
    pair = pairs.draw(BLOCKS, n_rows=5, width=96, hidden=256)
    pairs.assert_near(pair, y=Mosaic(interpret=True).mlp(pair.x, pair.weights, pair.layers, True))


@INTERPRETED
@pytest.mark.parametrize(
    ("capability", "dtype"),
    [(A100, "bfloat16"), pytest.param(HOPPER, "float32", marks=pytest.mark.exhaustive)],
)
def test_the_result_and_all_gradients(capability, dtype):
    pair = pairs.draw(BLOCKS, n_rows=70, width=96, hidden=256, dtype=dtype)
    engine = Mosaic(interpret=True, capability=capability)
    y = engine.mlp(pair.x, pair.weights, pair.layers, True)
    dx, (first, second) = engine.mlp_gradients(pair.x, pair.dy, pair.weights, pair.layers, True)
    of_first, of_second = {"dw1": first.kernel, "db1": first.bias}, {"dw2": second.kernel}
    pairs.assert_near(pair, y=y, dx=dx, **of_first, **of_second, db2=second.bias)


@INTERPRETED
def test_the_gradients_begin_with_one_kernel_that_is_cut_as_it_was_measured(monkeypatch):
    pair = pairs.draw(((32, 32), (32, 32)), n_rows=70, width=96, hidden=128)
    calls = []
    hidden_units = hidden.hidden_units

    def counted(*operands, **options):
        calls.append(options)
        return hidden_units(*operands, **options)

    monkeypatch.setattr(hidden, "hidden_units", counted)
    operands, engine = (pair.x, pair.dy, pair.weights, pair.layers), Mosaic(interpret=True)
    with tuning.forced(HiddenTiles(1, 1, 1, pieces=1, blocks=3, lines=1, stages=2)):
        dx, (first, second) = engine.mlp_gradients(*operands, residual=True)
    of_first, of_second = {"dw1": first.kernel, "db1": first.bias}, {"dw2": second.kernel}
    pairs.assert_near(pair, dx=dx, **of_first, **of_second, db2=second.bias)
    assert len(calls) == 1
