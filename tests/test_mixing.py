"""Token mixing with its scales folded is what the three steps are, in value and gradients."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp import sparse_linear
from sparsemlp.layer import Linear
from sparsemlp.masks import BlockMask
from sparsemlp.mixing import mix_tokens

TOKENS, OUT, CHANNELS, BLOCK = 8, 12, 5, (4, 2)
KEPT = np.array([0, 4, 5, 7, 11], np.int32)  # of the 4 x 3 blocks; the row of block 1 is empty

Arrays = dict[str, jax.Array]


def drawn(bias: bool) -> Arrays:
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "x": (2, 3, TOKENS, CHANNELS),
        "kernel": (TOKENS, OUT),
        "scale": (CHANNELS,),
        "shift": (CHANNELS,),
        "after": (CHANNELS,),
    }
    shapes |= {"bias": (OUT,)} if bias else {}
    return {name: jnp.asarray(rng.normal(size=s), jnp.float32) for name, s in shapes.items()}


def layer_of(a: Arrays, mask: BlockMask | None, backward: Any) -> Linear:
    return Linear(a["kernel"], a.get("bias"), mask, backward)


def folded(a: Arrays, mask: BlockMask | None, backward: Any) -> jax.Array:
    layer, before = layer_of(a, mask, backward), (a["scale"], a["shift"])
    return mix_tokens(a["x"], layer, before=before, after=a["after"], engine="reference")


def step_by_step(a: Arrays, mask: BlockMask | None, backward: Any) -> jax.Array:
    y = sparse_linear(
        a["scale"] * a["x"] + a["shift"],
        a["kernel"],
        a.get("bias"),
        axis=-2,
        mask=mask,
        backward=backward,
        engine="reference",
    )
    return a["after"] * y


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("backward", ["masked", "dense", "straight_through", None])
def test_folded_scales_change_neither_the_result_nor_a_gradient(backward, bias):
    mask = None if backward is None else BlockMask(jnp.asarray(KEPT), (TOKENS, OUT), BLOCK)
    arrays = drawn(bias)
    cotangent = jnp.asarray(
        np.random.default_rng(1).normal(size=(2, 3, OUT, CHANNELS)), jnp.float32
    )
    y, pull = jax.vjp(lambda a: folded(a, mask, backward or "masked"), arrays)
    expected, expected_pull = jax.vjp(lambda a: step_by_step(a, mask, backward or "masked"), arrays)
    (gradients,), (expected_gradients,) = pull(cotangent), expected_pull(cotangent)
    # Sums of at most 2 * 3 * 12 * 5 products of normal numbers, in two orders.
    tolerance = 4 * float(np.finfo(np.float32).eps) * math.sqrt(360) * 10
    np.testing.assert_allclose(y, expected, atol=tolerance, rtol=0)
    assert set(gradients) == set(expected_gradients)
    for name, gradient in gradients.items():
        assert np.any(np.asarray(gradient) != 0)
        np.testing.assert_allclose(
            gradient, expected_gradients[name], atol=tolerance, rtol=0, err_msg=name
        )
    if backward == "masked":
        assert mask is not None
        np.testing.assert_array_equal(np.asarray(gradients["kernel"])[~np.asarray(mask.dense())], 0)
