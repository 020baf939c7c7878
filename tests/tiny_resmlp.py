"""A ResMLP for tests of the model: its parameters and images, and how far rounding takes it.

A module takes `images, params = tiny_resmlp.images, tiny_resmlp.params`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_resmlp import Tree

from sparsemlp import ResMLP

BATCH, SIZE, PATCH, DIM, DEPTH, EXPANSION, CLASSES = 3, 8, 2, 8, 2, 2, 5
TOKENS = (SIZE // PATCH) ** 2
EPS = float(np.finfo(np.float32).eps)
LAYERS_IN_A_ROW = 1 + 3 * DEPTH + 1
# One rounding of the longest sum a layer, forward and backward, of errors of random sign.
ROUNDING = 4 * EPS * math.sqrt(2 * LAYERS_IN_A_ROW * BATCH * TOKENS)


def tiny(**changes: Any) -> ResMLP:
    return ResMLP(SIZE, PATCH, 3, DIM, DEPTH, EXPANSION, CLASSES, **changes)


@pytest.fixture(scope="module")
def images() -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, SIZE, SIZE, 3)), jnp.float32)


@pytest.fixture(scope="module")
def params(images) -> Tree:
    """Parameters of which none is zero or one, so that each of them matters."""
    shapes = jax.eval_shape(tiny().init, jax.random.key(0), images)["params"]
    rng = np.random.default_rng(2)

    def draw(shape: jax.ShapeDtypeStruct) -> jax.Array:
        fan_in = shape.shape[0] if len(shape.shape) == 2 else 1
        return jnp.asarray(rng.normal(size=shape.shape) / math.sqrt(fan_in), jnp.float32)

    return jax.tree.map(draw, shapes)
