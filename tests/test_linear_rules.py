"""All three rules on one layer: every product against its definition in NumPy float64."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pairwise import every_pair

from sparsemlp import (
    ActivationPooling,
    ActivationPruning,
    BlockMask,
    GradientPruning,
    sparse_linear,
)
from sparsemlp.activations import compact
from sparsemlp.errors import InputError
from sparsemlp.gradient_pruning import prune_gradient

EPS = np.finfo(np.float32).eps
BATCH, TOKENS, IN, OUT = 2, 6, 8, 12
MASK = BlockMask(jnp.array([0, 3, 4], jnp.int32), (IN, OUT), (4, 4))
PRUNING, POOLING = ActivationPruning((2, 2), 0.5), ActivationPooling((2, 2))
GRADIENT = GradientPruning(2, 4, "rescaled")
AXES = pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def operands(axis: int) -> tuple[jax.Array, ...]:
    """The arrays x, kernel, bias, dy."""
    x, dy = normal(BATCH, TOKENS, IN), normal(BATCH, TOKENS, OUT, seed=3)
    if axis == -2:
        x, dy = x.swapaxes(1, 2), dy.swapaxes(1, 2)
    return x, normal(IN, OUT, seed=1), normal(OUT, seed=2), dy


@functools.partial(jax.jit, static_argnames=("axis", "backward", "activation", "gradient"))
def value_and_gradients(x, kernel, bias, mask, dy, axis, backward, activation, gradient):
    def call(x, kernel, bias):
        return sparse_linear(
            x,
            kernel,
            bias,
            axis=axis,
            mask=mask,
            backward=backward,
            activation=activation,
            gradient=gradient,
            rng=jax.random.key(0),
        )

    y, pull = jax.vjp(call, x, kernel, bias)
    return y, *pull(dy)


def rows(a, axis: int) -> np.ndarray:
    turned = np.moveaxis(np.asarray(a, np.float64), axis, -1)
    return turned.reshape(-1, turned.shape[-1])


def kept_activation(x, activation, axis: Any) -> np.ndarray:
    """The activation that dW sees, as rows; its own definition is held in test_activations."""
    if activation is None:
        return rows(x, axis)
    kept: Any = compact(x, activation, axis)
    if isinstance(activation, ActivationPruning):
        return rows(kept.dense(), axis)
    (tokens, features), means = activation.window, kept.means
    return rows(np.repeat(np.repeat(means, tokens, axis=-2), features, axis=-1), axis)


@every_pair(
    axis=(-1, -2),
    backward=("masked", "dense", "straight_through"),
    masked=(True, False),
    rules=tuple(itertools.product((None, PRUNING, POOLING), (None, GRADIENT)))[1:],
)
def test_each_product_is_that_of_its_operands(axis, backward, masked, rules):
    activation, gradient = rules
    x, kernel, bias, dy = operands(axis)
    mask = MASK if masked else None
    found = value_and_gradients(x, kernel, bias, mask, dy, axis, backward, activation, gradient)
    m = np.asarray(MASK.dense()) if masked else 1
    w, b = np.float64(kernel), np.float64(bias)
    x_rows, dy_rows = rows(x, axis), rows(dy, axis)
    pruned = dy if gradient is None else prune_gradient(dy, gradient, axis=axis)
    used, own = rows(pruned, axis), kept_activation(x, activation, axis)
    back = w if backward == "dense" else w * m
    expected = (
        x_rows @ (w * m) + b,
        used @ back.T,
        own.T @ dy_rows * (m if backward == "masked" else 1),
        dy_rows.sum(axis=0),
    )
    sizes = (
        abs(x_rows) @ abs(w) + abs(b),
        abs(used) @ abs(w).T,
        abs(own).T @ abs(dy_rows),
        abs(dy_rows).sum(axis=0),
    )
    for name, a, e, size, k in zip(
        ("y", "dx", "dw", "db"),
        found,
        expected,
        sizes,
        (IN, OUT, len(x_rows), len(x_rows)),
        strict=True,
    ):
        a = rows(a, axis) if name in ("y", "dx") else a
        np.testing.assert_array_less(abs(a - e), 4 * EPS * np.sqrt(k) * size + 1e-30, err_msg=name)


@AXES
@pytest.mark.parametrize("masked", [True, False], ids=["mask", "no mask"])
@pytest.mark.parametrize(
    ("activation", "gradient"),
    [
        (ActivationPruning((2, 2), 0.0), None),
        (ActivationPooling((1, 1)), None),
        (None, GradientPruning(4, 4, "rescaled")),
        (None, GradientPruning(4, 4, "random")),
    ],
    ids=str,
)
def test_rules_that_drop_nothing_change_no_bit(axis, masked, activation, gradient):
    x, kernel, bias, dy = operands(axis)
    mask = MASK if masked else None
    found = value_and_gradients(x, kernel, bias, mask, dy, axis, "masked", activation, gradient)
    plain = value_and_gradients(x, kernel, bias, mask, dy, axis, "masked", None, None)
    for a, b in zip(found, plain, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_rule_leaves_the_program_of_a_layer_without_one_as_it_was():
    x, kernel, bias, dy = operands(-1)

    def program(**rules):
        def gradients(x, kernel, bias, dy):
            y, pull = jax.vjp(lambda *a: sparse_linear(*a, **rules), x, kernel, bias)
            return y, *pull(dy)

        return jax.jit(gradients).lower(x, kernel, bias, dy).as_text()

    assert program() == program(activation=None, gradient=None, rng=None)
    assert program() == program(
        activation=ActivationPruning((2, 2), 0.0), gradient=GradientPruning(4, 4)
    )


@AXES
def test_nothing_of_the_activation_survives_but_what_its_rule_keeps(axis):
    x, kernel, bias, _ = operands(axis)

    def residual_shapes(activation):
        _, pull = jax.vjp(
            lambda x: sparse_linear(x, kernel, bias, axis=axis, activation=activation), x
        )
        return {leaf.shape for leaf in jax.tree.leaves(pull)}

    assert x.shape in residual_shapes(None)
    assert x.shape not in residual_shapes(PRUNING)
    assert x.shape not in residual_shapes(POOLING)


def test_rules_work_under_vmap_and_scan():
    xs = normal(3, BATCH, TOKENS, IN)
    _, kernel, bias, dy = operands(-1)
    rules = {"mask": MASK, "activation": PRUNING, "gradient": GRADIENT}

    def gradients(x):
        _, pull = jax.vjp(lambda x, w: sparse_linear(x, w, bias, **rules), x, kernel)
        return pull(dy)

    each = [jax.jit(gradients)(x) for x in xs]
    expected = jax.tree.map(lambda *a: jnp.stack(a), *each)
    for mapped in (jax.jit(jax.vmap(gradients)), jax.jit(lambda a: jax.lax.map(gradients, a))):
        for a, b in zip(mapped(xs), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=16 * EPS * np.abs(b).max())


@pytest.mark.parametrize("engine", ["auto", "cpu", "reference"])
@pytest.mark.parametrize("method", ["magnitude", "rescaled", "random"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["no mask", "dense backward"])
def test_dx_with_a_whole_kernel_is_the_product_of_the_pruned_gradient(engine, method, mask):
    tokens = 40
    x, dy = normal(BATCH, tokens, IN), normal(BATCH, tokens, OUT, seed=3)
    kernel, rng = normal(IN, OUT, seed=1), jax.random.key(5)
    gradient = GradientPruning(2, 4, method)

    @jax.jit
    def input_gradient(x, dy):
        def call(x):
            return sparse_linear(
                x, kernel, mask=mask, backward="dense", gradient=gradient, engine=engine, rng=rng
            )

        return jax.vjp(call, x)[1](dy)[0]

    used = np.asarray(prune_gradient(dy, gradient, rng=rng), np.float64)
    w = np.asarray(kernel, np.float64)
    size = abs(used) @ abs(w).T
    error = abs(np.asarray(input_gradient(x, dy)) - used @ w.T)
    # The factor of `rescaled` is a quotient of sums over tokens.
    np.testing.assert_array_less(error, 4 * EPS * np.sqrt(OUT + tokens) * size)


@pytest.mark.parametrize(
    ("mask", "gradient"),
    [
        (MASK, GradientPruning(2, 4, "random")),
        (None, GradientPruning(2, 4, "random")),
        (None, GradientPruning(2, 4)),
    ],
    ids=["mask, random", "random", "magnitude"],
)
def test_rules_work_under_shard_map(mask, gradient):
    x, kernel, bias, dy = operands(-1)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split, whole = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()

    def gradients(x, kernel, bias, dy, rng):
        def call(x, kernel):
            return sparse_linear(
                x, kernel, bias, mask=mask, activation=PRUNING, gradient=gradient, rng=rng
            )

        return jax.vjp(call, x, kernel)[1](dy)

    sharded = jax.shard_map(
        gradients,
        mesh=mesh,
        in_specs=(split, whole, whole, split, whole),
        out_specs=(split, whole),
    )
    rng = jax.random.key(0)
    found = jax.jit(sharded)(x, kernel, bias, dy, rng)
    for a, b in zip(found, jax.jit(gradients)(x, kernel, bias, dy, rng), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=16 * EPS * np.abs(b).max())


@pytest.mark.parametrize("activation", [PRUNING, POOLING], ids=["pruning", "pooling"])
def test_bfloat16_in_bfloat16_out(activation):
    x, kernel, bias, dy = (a.astype(jnp.bfloat16) for a in operands(-1))
    found = value_and_gradients(x, kernel, bias, MASK, dy, -1, "masked", activation, GRADIENT)
    assert {a.dtype for a in found} == {jnp.dtype(jnp.bfloat16)}
    wide = value_and_gradients(
        *(a.astype(jnp.float32) for a in (x, kernel, bias)),
        MASK,
        dy.astype(jnp.float32),
        -1,
        "masked",
        activation,
        GRADIENT,
    )
    for a, b in zip(found, wide, strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b, atol=0.05 * np.abs(b).max())


def test_a_missing_key_matters_only_where_something_is_differentiated():
    x, kernel, _, _ = operands(-1)
    rule = GradientPruning(2, 4, "random")
    sparse_linear(x, kernel, gradient=rule)
    with pytest.raises(InputError, match="'random' draws at random and has no key"):
        jax.grad(lambda x: jnp.sum(sparse_linear(x, kernel, gradient=rule)))(x)
