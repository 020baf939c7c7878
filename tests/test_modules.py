"""The Flax layers against Flax's own, SciPy and their definitions."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp import (
    ActivationPooling,
    ActivationPruning,
    BlockMasking,
    GradientPruning,
    SparseDense,
    select_blocks,
    select_masks,
    sparse_linear,
)
from sparsemlp.errors import InputError
from sparsemlp.modules import Affine, LayerScale, StochasticDepth

IN, OUT = 6, 8
EPS = float(np.finfo(np.float32).eps)


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def dense_params() -> dict[str, jax.Array]:
    return {"kernel": normal(IN, OUT, seed=1), "bias": normal(OUT, seed=2)}


def run(module: nn.Module, variables: Any, *inputs: Any, **options: Any) -> Any:
    """What a module gives, without the collections that it might have changed."""
    return module.apply(variables, *inputs, **options)


# Sums of 7 terms, each a product of two numbers of magnitude up to about 3.
ROUNDING = 4 * EPS * math.sqrt(IN + 1) * 9


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("shape", [(4, IN), (2, 3, IN)], ids=str)
def test_without_masks_the_layer_is_a_flax_dense_layer(shape, use_bias):
    ours, flax = SparseDense(OUT, use_bias=use_bias), nn.Dense(OUT, use_bias=use_bias)
    params = dense_params() if use_bias else {"kernel": dense_params()["kernel"]}
    x = normal(*shape)
    np.testing.assert_allclose(
        run(ours, {"params": params}, x), run(flax, {"params": params}, x), atol=ROUNDING
    )


def test_init_gives_the_plain_parameters_of_a_flax_dense_layer():
    plan = {"kernel": BlockMasking((4, 2), 0.5)}
    x, key = normal(4, IN), jax.random.key(0)
    variables = SparseDense(OUT, plan=plan).init(key, x)
    assert set(variables) == {"params"}
    assert set(variables["params"]) == {"kernel", "bias"}
    jax.tree.map(np.testing.assert_array_equal, variables, nn.Dense(OUT).init(key, x))


def test_without_bias_there_is_no_bias():
    shapes = jax.eval_shape(SparseDense(OUT, use_bias=False).init, jax.random.key(0), normal(4, IN))
    assert set(shapes["params"]) == {"kernel"}


@pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])
def test_a_mask_changes_the_output_as_the_masked_kernel_would(axis):
    params = dense_params()
    mask = select_blocks(params["kernel"], (4, 2), 0.5)
    masked = {**params, "kernel": params["kernel"] * mask.dense()}
    x = normal(2, 3, IN) if axis == -1 else normal(2, IN, 3)
    layer = SparseDense(OUT, axis=axis)
    y = run(layer, {"params": params, "masks": {"kernel": mask}}, x)
    np.testing.assert_allclose(y, run(layer, {"params": masked}, x), atol=ROUNDING)
    assert not np.allclose(y, run(layer, {"params": params}, x), atol=ROUNDING)


@pytest.mark.parametrize(("axis", "shape"), [(-1, ()), (-2, (4,))])
def test_an_input_without_the_axis_is_told(axis, shape):
    with pytest.raises(InputError, match=rf"has no axis {axis} to contract"):
        SparseDense(2, axis=axis).init(jax.random.key(0), jnp.ones(shape))


def test_along_tokens_the_layer_mixes_tokens_and_leaves_channels_apart():
    params, x = dense_params(), normal(2, IN, 3)
    layer = SparseDense(OUT, axis=-2)
    y = jax.jit(layer.apply)({"params": params}, x)
    assert jax.tree.map(jnp.shape, layer.init(jax.random.key(0), x)["params"]) == {
        "kernel": (IN, OUT),
        "bias": (OUT,),
    }
    by_hand = run(nn.Dense(OUT), {"params": params}, x.swapaxes(1, 2))
    np.testing.assert_allclose(y, jnp.asarray(by_hand).swapaxes(1, 2), atol=ROUNDING)


def test_the_plan_says_which_backward_pass_a_layer_takes():
    params, x = dense_params(), normal(4, IN)
    mask = select_blocks(params["kernel"], (4, 2), 0.5)
    dropped = ~np.asarray(mask.dense())

    def gradient(plan: dict[str, Any]) -> np.ndarray:
        layer = SparseDense(OUT, plan=plan)

        def loss(params):
            return jnp.sum(run(layer, {"params": params, "masks": {"kernel": mask}}, x))

        return np.asarray(jax.grad(loss)(params)["kernel"])

    rule = BlockMasking((4, 2), 0.5)
    for plan in ({}, {"kernel": rule}):
        np.testing.assert_array_equal(gradient(plan)[dropped], 0.0)
    for backward in ("dense", "straight_through"):
        plan = {"kernel": BlockMasking((4, 2), 0.5, backward)}
        assert np.all(gradient(plan)[dropped] != 0)


def test_a_model_of_ones_own_takes_masks_from_its_own_plan():
    plan = {"wide/kernel": BlockMasking((4, 2), 0.5), "*/inner/kernel": BlockMasking((1, 4), 0.7)}

    class Inner(nn.Module):
        @nn.compact
        def __call__(self, x):
            return SparseDense(2, plan=plan, name="inner")(x)

    class Own(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = jnp.tanh(SparseDense(OUT, plan=plan, name="wide")(x))
            return Inner(name="body")(x)

    model, x = Own(), normal(4, IN)
    params = model.init(jax.random.key(0), x)["params"]

    @jax.jit
    def loss(params):
        masks = select_masks(params, plan)
        return jnp.sum(run(model, {"params": params, "masks": masks}, x))

    masks = select_masks(params, plan)
    wide, inner = (masks["wide"]["kernel"].dense(), masks["body"]["inner"]["kernel"].dense())
    expected = jnp.tanh(x @ (params["wide"]["kernel"] * wide)) @ (
        params["body"]["inner"]["kernel"] * inner
    )
    np.testing.assert_allclose(loss(params), expected.sum(), atol=4 * 2 * ROUNDING)
    gradient = jax.grad(loss)(params)
    np.testing.assert_array_equal(gradient["wide"]["kernel"][~wide], 0.0)
    np.testing.assert_array_equal(gradient["body"]["inner"]["kernel"][~inner], 0.0)


def test_bfloat16_computation_keeps_float32_parameters():
    layer = SparseDense(OUT, dtype=jnp.bfloat16)
    variables = layer.init(jax.random.key(0), normal(4, IN))
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype(jnp.float32)}
    assert run(layer, variables, normal(4, IN)).dtype == jnp.bfloat16


def test_layers_are_equal_and_hash_alike_for_equal_plans():
    first = SparseDense(OUT, plan={"kernel": BlockMasking((4, 2), 0.5)})
    second = SparseDense(OUT, plan={"kernel": BlockMasking((4, 2), 0.5)})
    assert first == second
    assert hash(first) == hash(second)
    assert first != SparseDense(OUT, plan={"kernel": BlockMasking((4, 2), 0.6)})


def test_the_plan_gives_a_layer_its_activation_and_gradient_rules():
    rules = (ActivationPruning((2, 2), 0.5), GradientPruning(1, 2))
    layer = SparseDense(OUT, plan={"kernel": rules})
    x = normal(4, IN)
    params = layer.init(jax.random.key(0), x)["params"]

    def by_module(x, params):
        return jnp.sum(jnp.square(run(layer, {"params": params}, x)))

    def by_operation(x, params):
        y = sparse_linear(
            x, params["kernel"], params["bias"], activation=rules[0], gradient=rules[1]
        )
        return jnp.sum(jnp.square(y))

    found = jax.grad(by_module, argnums=(0, 1))(x, params)
    expected = jax.grad(by_operation, argnums=(0, 1))(x, params)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_random_gradient_rule_draws_from_its_stream_and_no_forward_pass_needs_it():
    layer = SparseDense(OUT, plan={"kernel": GradientPruning(1, 2, "random")})
    x = normal(4, IN)
    variables = layer.init(jax.random.key(0), x)

    def dx(**rngs):
        def total(x):
            y: Any = layer.apply(variables, x, rngs=rngs)
            return jnp.sum(y)

        return jax.grad(total)(x)

    layer.apply(variables, x)
    with pytest.raises(InputError, match="random stream 'gradient'"):
        dx()
    first = dx(gradient=jax.random.key(1))
    np.testing.assert_array_equal(first, dx(gradient=jax.random.key(1)))
    assert np.any(first != dx(gradient=jax.random.key(2)))


def test_an_activation_has_one_rule():
    rules = (ActivationPruning((2, 2), 0.5), ActivationPooling((2, 2)))
    with pytest.raises(InputError, match=r"gives kernel both Activ.* kept in one way, remove one"):
        SparseDense(OUT, plan={"kernel": rules}).init(jax.random.key(0), normal(4, IN))


def test_an_affine_layer_scales_and_shifts_each_channel():
    x, scale, bias = normal(2, 5, 3), normal(3, seed=1), normal(3, seed=2)
    y = run(Affine(), {"params": {"scale": scale, "bias": bias}}, x)
    np.testing.assert_allclose(y, np.float64(x) * scale + bias, atol=2 * EPS * 10)
    np.testing.assert_array_equal(Affine().init_with_output(jax.random.key(0), x)[0], x)


def test_a_layer_scale_scales_each_channel_and_starts_from_its_value():
    x, scale = normal(2, 5, 3), normal(3, seed=1)
    y = run(LayerScale(0.1), {"params": {"scale": scale}}, x)
    np.testing.assert_array_equal(y, x * scale)
    variables = LayerScale(1e-5).init(jax.random.key(0), x)
    np.testing.assert_array_equal(variables["params"]["scale"], np.full(3, 1e-5, np.float32))


def drop(rate: float, x: jax.Array, seed: int = 0, *, train: bool = True) -> np.ndarray:
    rngs = {"drop_path": jax.random.key(seed)} if train else {}
    return np.asarray(run(StochasticDepth(rate), {}, x, train=train, rngs=rngs))


def test_stochastic_depth_is_the_identity_in_evaluation_and_needs_no_random_stream():
    x = normal(8, 3, 2)
    np.testing.assert_array_equal(drop(0.4, x, train=False), x)
    np.testing.assert_array_equal(run(StochasticDepth(0.0), {}, x, train=True), x)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_stochastic_depth_drops_whole_samples_and_rescales_the_others(dtype):
    rate, x = 0.25, normal(64, 3, 2).astype(dtype)
    y = drop(rate, x)
    assert y.dtype == dtype
    alive = np.any(y != 0, axis=(1, 2))
    assert 0 < alive.sum() < 64
    np.testing.assert_array_equal(y[~alive], 0)
    np.testing.assert_array_equal(y[alive], (x / jnp.asarray(1 - rate, dtype))[alive])
    assert not np.array_equal(alive, np.any(drop(rate, x, seed=1) != 0, axis=(1, 2)))


def test_stochastic_depth_preserves_the_mean():
    rate, n = 0.2, 20_000
    mean = drop(rate, jnp.ones((n, 1))).mean()
    # A sample is Bernoulli(0.8) / 0.8, with variance rate / (1 - rate); five standard errors.
    assert abs(mean - 1) < 5 * math.sqrt(rate / (1 - rate) / n)


@pytest.mark.filterwarnings("error")
def test_arrays_of_numpy_have_the_precision_of_jax(unchecked):
    x = np.random.default_rng(0).normal(size=(2, 8))
    layer = SparseDense(4)
    params = layer.init(jax.random.key(0), x)
    y = layer.apply(params, x)
    assert isinstance(y, jax.Array)
    assert y.dtype == jnp.asarray(x).dtype
    np.testing.assert_array_equal(y, layer.apply(params, jnp.asarray(x)))


@pytest.mark.filterwarnings("error")
def test_a_layer_is_tabulated(unchecked):
    table = SparseDense(4).tabulate(jax.random.key(0), jnp.ones((2, 8)))
    assert "kernel" in table


def test_a_weak_dtype_gives_way_as_in_flax_s_layer():
    x = jnp.full((2, 8), 1.0)
    layers = (layer(4, param_dtype=jnp.bfloat16) for layer in (SparseDense, nn.Dense))
    found, wanted = (layer.init_with_output(jax.random.key(0), x)[0] for layer in layers)
    assert found.dtype == wanted.dtype == jnp.bfloat16


def test_a_dtype_in_the_place_of_the_axis_is_told(unchecked):
    """The third argument of `flax.linen.Dense` is its dtype."""
    dtype: Any = jnp.bfloat16
    with pytest.raises(InputError, match=r"axis .*bfloat16.* is neither -1"):
        SparseDense(4, True, dtype).init(jax.random.key(0), jnp.ones((2, 8)))
