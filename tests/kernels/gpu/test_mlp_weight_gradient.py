"""Gradients of fused layers whose rows are shared among programs, and their kept blocks too."""

import dataclasses

import jax
import numpy as np
import pairs
import pytest

from pallas_kernels.layout import dense_mask
from pallas_kernels.triton import mlp_weight_gradient
from pallas_kernels.triton.pair_tiles import ShareTiles

INTERPRET = jax.default_backend() != "gpu"
TILES = ShareTiles(32, warps=4, stages=2, units=16, slots=2, programs=48)


@pytest.mark.parametrize(
    ("blocks", "tiles"),
    [
        (((32, 16), (16, 32)), TILES),  # 3 shares; lists of up to 4 blocks, 2 at a time
        (((32, 32), (32, 64)), dataclasses.replace(TILES, units=32, slots=1, programs=1)),
    ],
    ids=["shares", "one share, one slot"],
)
def test_shares_of_rows_and_of_kept_blocks_make_the_whole(blocks, tiles):
    pair = pairs.draw(blocks, n_rows=75, width=64, hidden=256)

    @jax.jit
    def call(x, dy, weights):
        return mlp_weight_gradient.parameter_gradients(
            x, dy, weights, pair.layers, tiles, interpret=INTERPRET
        )

    dw1, db1, dw2 = call(pair.x, pair.dy, pair.weights)
    pairs.assert_near(pair, dw1=dw1, db1=db1, dw2=dw2)
    for found, own, layer in zip((dw1, dw2), pair.weights, pair.layers, strict=True):
        mask = np.asarray(dense_mask(own.kept, layer.kernel_shape, layer.block))
        np.testing.assert_array_equal(np.asarray(found)[~mask], 0)
