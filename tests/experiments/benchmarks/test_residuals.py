"""What is kept for a backward pass: counted once, by layer and kind."""

import jax
import jax.numpy as jnp
import pytest
from benchmarks.residuals import COMPACT, CONDITIONS, IDS, WHOLE, layer_kind, residuals, saved_bytes

from sparsemlp import ActivationPooling, ActivationPruning, sparse_linear

PARAMS = {"w": jax.ShapeDtypeStruct((16, 16), jnp.float32)}
X = jax.ShapeDtypeStruct((8, 16), jnp.float32)
SIZE = 8 * 16 * 4


def test_what_is_kept_counts_once_and_what_was_given_not_at_all():
    def linear(params, x):
        return jnp.sum(x @ params["w"])

    def squares(params, x):
        return jnp.sum(jnp.sin(x @ params["w"]))

    assert saved_bytes(linear, PARAMS, X) == 0
    assert saved_bytes(squares, PARAMS, X) == SIZE


def test_a_constant_is_not_kept():
    def scaled(params, x):
        return jnp.sum(jnp.zeros((8, 16)) * (x @ params["w"]))

    assert saved_bytes(scaled, PARAMS, X) == 0


def test_each_array_is_told_by_its_layer_and_kind():
    def loss(params, x):
        with jax.named_scope("model"), jax.named_scope("outer"):
            y = jnp.sin(x @ params["w"])
            with jax.named_scope("inner"):
                return jnp.sum(jnp.where(y > 0, y @ params["w"], 0.0))

    found = residuals(loss, PARAMS, X)
    assert sorted((r.layer, r.kind, r.n_bytes) for r in found) == [
        ("outer", WHOLE, SIZE),
        ("outer", WHOLE, SIZE),
        ("outer/inner", CONDITIONS, SIZE // 4),
    ]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (ActivationPruning((2, 4), 0.75), {COMPACT: SIZE // 4, IDS: 4 * 4}),
        (ActivationPooling((1, 8)), {COMPACT: SIZE // 8}),
    ],
)
def test_what_a_rule_keeps_is_told_inside_of_functions_and_recomputation(rule, expected):
    def loss(params, x):
        x = jnp.sin(x)

        @jax.checkpoint
        def layer(w):
            return sparse_linear(x, w, activation=rule)

        def plain(w):
            return jax.jit(lambda w: sparse_linear(x, w, activation=rule))(w)

        return jnp.sum(plain(params["w"])) + 0 * jnp.sum(layer(params["w"]))

    sums: dict[str, int] = {}
    for residual in residuals(loss, PARAMS, X):
        sums[residual.kind] = sums.get(residual.kind, 0) + residual.n_bytes
    # The recomputed layer keeps the input that it is computed again from.
    assert sums == expected | {WHOLE: SIZE}


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        ("block_3/XPatch", "XPatch"),
        ("block_10/XChannel/first", "XChannel/first"),
        ("conv_4", "conv"),
        ("block_2", "block"),
        ("", "other"),
    ],
)
def test_layers_of_a_kind(layer, kind):
    assert layer_kind(layer) == kind
