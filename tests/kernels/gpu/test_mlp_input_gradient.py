"""Fused layers cut into several tiles of rows and several groups of features."""

import dataclasses

import jax
import pairs
import pytest

from pallas_kernels import SparseLayer, Triton
from pallas_kernels.triton import hidden, mlp, mlp_input_gradient
from pallas_kernels.triton.pair_tiles import MlpTiles

INTERPRET = jax.default_backend() != "gpu"


@pytest.mark.parametrize(
    ("blocks", "features", "units"),
    [
        (((32, 32), (32, 32)), 64, 16),  # groups of 2 blocks of 3, runs of half a block
        (((32, 16), (16, 64)), 16, 32),  # groups of one block
    ],
    ids=str,
)
def test_tiles_of_rows_and_groups_of_features_make_the_whole(blocks, features, units, monkeypatch):
    # Both blocks have a side of two parts.
    monkeypatch.setattr(hidden, "DEPTH", 16)
    pair = pairs.draw(blocks, n_rows=75, width=96 if blocks[0][1] == 32 else 32, hidden=256)
    tiles = MlpTiles(32, warps=4, stages=2, features=features, units=units)

    @jax.jit
    def call(x, dy, weights):
        rest, options = (weights, pair.layers, tiles), {"residual": True, "interpret": INTERPRET}
        return (
            mlp.mlp(x, *rest, **options),
            mlp_input_gradient.input_gradient(x, dy, *rest, **options),
        )

    y, dx = call(pair.x, pair.dy, pair.weights)
    pairs.assert_near(pair, y=y, dx=dx)


@pytest.mark.parametrize(("axis", "is_fused"), [(-1, True), (-2, False)])
def test_layers_along_the_tokens_go_step_by_step(axis, is_fused):
    layer = SparseLayer((384, 384), (32, 32), 5, axis, "float32")
    assert Triton().fuses(layer, layer) == is_fused
    assert not Triton().fuses(layer, dataclasses.replace(layer, n_kept=0))
