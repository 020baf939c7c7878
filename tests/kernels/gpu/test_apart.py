"""The rest of the gradients of two layers, by the engine that defines the products."""

import jax.numpy as jnp
import numpy as np
import pairs
import pytest
import reference_mlp

from pallas_kernels import Reference, apart
from pallas_kernels.layout import dense_mask


@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
def test_units_and_their_gradient_give_the_gradients_of_both_layers(with_bias):
    pair = pairs.draw(((32, 32), (32, 16)), n_rows=9, width=64, hidden=128)
    weights = pair.weights
    (w1, b1), (w2, _) = (
        (
            np.asarray(own.kernel, np.float64) * np.asarray(dense_mask(own.kept, *shape)),
            np.asarray(own.bias, np.float64),
        )
        for own, shape in (
            (own, (layer.kernel_shape, layer.block))
            for own, layer in zip(weights, pair.layers, strict=True)
        )
    )
    if not with_bias:
        weights = weights[0]._replace(bias=None), weights[1]._replace(bias=None)
    units, slope = reference_mlp.gelu(np.asarray(pair.x, np.float64) @ w1 + b1)
    gradient = (np.asarray(pair.dy, np.float64) @ w2.T) * slope
    dx, (first, second) = apart.gradients(
        Reference(),
        pair.x,
        pair.dy,
        (jnp.asarray(units, jnp.float32), jnp.asarray(gradient, jnp.float32)),
        weights,
        pair.layers,
        True,
    )
    found = {"dx": dx, "dw1": first.kernel, "dw2": second.kernel}
    biases = {"db1": first.bias, "db2": second.bias}
    assert all((bias is not None) == with_bias for bias in biases.values())
    pairs.assert_near(pair, **found, **(biases if with_bias else {}))
