"""Fused layers cut into several tiles of rows and several groups of features."""

import jax
import pairs
import pytest

from pallas_kernels import SparseLayer, Triton
from pallas_kernels.triton import hidden, mlp, mlp_input_gradient
from pallas_kernels.triton.mlp import MlpTiles

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
        options = {"interpret": INTERPRET, "tiles": tiles}
        return (
            mlp.mlp(x, weights, pair.layers, True, **options),
            mlp_input_gradient.input_gradient(x, dy, weights, pair.layers, True, **options),
        )

    y, dx = call(pair.x, pair.dy, pair.weights)
    pairs.assert_near(pair, y=y, dx=dx)


@pytest.mark.parametrize(
    ("width", "axis", "is_fused"),
    [(384, -1, True), (768, -1, True), (1024, -1, False), (384, -2, False)],
)
def test_wide_layers_and_tokens_go_step_by_step(width, axis, is_fused):
    first = SparseLayer((width, 4 * width), (32, 32), 5, axis, "float32")
    second = SparseLayer((4 * width, width), (32, 32), 5, axis, "float32")
    assert Triton().fuses(first, second) == is_fused
