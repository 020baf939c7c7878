"""The layers for images against those of Flax and against NumPy."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp import (
    ActivationPruning,
    BlockMasking,
    GradientPruning,
    SparseConv,
    select_masks,
    sparse_conv,
)
from sparsemlp.errors import InputError
from sparsemlp.image_modules import BatchNormScales

EPS = np.finfo(np.float32).eps
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 6, 4)), jnp.float32)
RULES = (BlockMasking((4, 4), 0.5), ActivationPruning((4, 4), 0.5), GradientPruning(2, 4))


def applied(module: nn.Module, *arguments: Any, **options: Any) -> Any:
    return module.apply(*arguments, **options)


class OneConv(nn.Module):
    plan: dict

    @nn.compact
    def __call__(self, x):
        return SparseConv(8, (3, 3), plan=self.plan, name="conv")(x)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": (3, 3)},
        {"kernel_size": (3, 2), "strides": (2, 1), "padding": "VALID", "use_bias": False},
        {"kernel_size": (1, 1), "strides": (2, 2)},
        {"kernel_size": (5, 5), "strides": 2, "padding": 2},
        {"kernel_size": (3, 3), "strides": None, "padding": "same"},
        {"kernel_size": (3, 3), "dtype": jnp.bfloat16},
    ],
    ids=str,
)
def test_without_a_plan_it_is_flax_linens_conv(options):
    ours, theirs = SparseConv(8, **options), nn.Conv(8, **options)
    params = theirs.init(jax.random.key(0), X)
    assert jax.tree.map(jnp.shape, ours.init(jax.random.key(0), X)) == jax.tree.map(
        jnp.shape, params
    )

    def value_and_gradients(module):
        y, pull = jax.vjp(lambda p, x: applied(module, p, x), params, X)
        return y, *jax.tree.leaves(pull(jnp.ones_like(y)))

    eps = float(jnp.finfo(options.get("dtype", jnp.float32)).eps)
    for a, b in zip(value_and_gradients(ours), value_and_gradients(theirs), strict=True):
        assert a.dtype == b.dtype
        a, b = np.float64(a), np.float64(b)
        np.testing.assert_allclose(a, b, rtol=0, atol=16 * eps * (1 + np.abs(b).max()))


@pytest.mark.parametrize("shape", [(8, 8, 3), (2, 2, 8, 8, 3)])
def test_an_image_without_a_batch_is_refused_and_so_are_two(shape, unchecked):
    with pytest.raises(InputError, match="give one axis for the batch"):
        SparseConv(4, (3, 3)).init(jax.random.key(0), jnp.ones(shape))


@pytest.mark.parametrize("size", [3, (3,), (3, 3, 3)])
def test_a_kernel_that_is_not_for_images_is_refused(size, unchecked):
    with pytest.raises(InputError, match=r"kernel_size .* is not \(down, across\)"):
        SparseConv(4, size).init(jax.random.key(0), X)


def test_images_may_be_a_list(unchecked):
    model = SparseConv(4, (3, 3))
    params = model.init(jax.random.key(0), X)
    np.testing.assert_array_equal(model.apply(params, X.tolist()), model.apply(params, X))


def test_a_plan_gives_it_masks_and_rules():
    model = OneConv({"conv/kernel": RULES})
    params = model.init(jax.random.key(0), X)["params"]
    masks = select_masks(params, model.plan)
    assert masks["conv"]["kernel"].kernel_shape == (36, 8)

    def own(params):
        return jnp.sum(jnp.sin(applied(model, {"params": params, "masks": masks}, X)))

    def by_hand(params):
        kernel, bias = params["conv"]["kernel"], params["conv"]["bias"]
        mask = masks["conv"]["kernel"]
        y = sparse_conv(X, kernel, bias, mask=mask, activation=RULES[1], gradient=RULES[2])
        return jnp.sum(jnp.sin(y))

    jax.tree.map(
        np.testing.assert_array_equal,
        jax.jit(jax.value_and_grad(own))(params),
        jax.jit(jax.value_and_grad(by_hand))(params),
    )


def test_the_random_gradient_rule_draws_from_its_stream():
    model = OneConv({"conv/kernel": GradientPruning(2, 4, "random")})
    params = model.init(jax.random.key(0), X)

    def gradient(**rngs):
        return jax.grad(lambda x: jnp.sum(applied(model, params, x, rngs=rngs)))(X)

    one, again, other = (gradient(gradient=jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.any(one != other)
    with pytest.raises(InputError, match="the random stream 'gradient'"):
        gradient()


def test_scales_normalise_as_flax_linens_batch_norm():
    ours, theirs = BatchNormScales(), nn.BatchNorm(momentum=0.9, epsilon=1e-5)
    variables = theirs.init(jax.random.key(0), X, use_running_average=True)
    assert jax.tree.map(jnp.shape, ours.init(jax.random.key(0), X, train=False)) == jax.tree.map(
        jnp.shape, variables
    )
    params = {
        "scale": jnp.asarray([1.0, 2.0, -1.0, 0.5]),
        "bias": jnp.asarray([0.0, 1.0, 2.0, -1.0]),
    }
    shifted = 3 * X + 1

    def normalised(params, y):
        own = {"params": params, "batch_stats": variables["batch_stats"]}
        (scale, shift), _ = applied(ours, own, y, train=True, mutable=["batch_stats"])
        return jnp.sin(y * scale + shift)

    def expected(params, y):
        own = {"params": params, "batch_stats": variables["batch_stats"]}
        z, _ = applied(theirs, own, y, use_running_average=False, mutable=["batch_stats"])
        return jnp.sin(z)

    for a, b in zip(
        jax.tree.leaves(jax.vjp(normalised, params, shifted)[1](X)),
        jax.tree.leaves(jax.vjp(expected, params, shifted)[1](X)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=64 * EPS * (1 + np.abs(b).max()))
    np.testing.assert_allclose(
        normalised(params, shifted), expected(params, shifted), atol=64 * EPS
    )


def test_running_statistics_move_in_training_and_are_used_in_evaluation():
    ours = BatchNormScales()
    variables = ours.init(jax.random.key(0), X, train=False)
    _, changed = applied(ours, variables, X, train=True, mutable=["batch_stats"])
    stats = changed["batch_stats"]
    rows = np.float64(X).reshape(-1, 4)
    mean, variance = rows.mean(axis=0), rows.var(axis=0, ddof=1)
    np.testing.assert_allclose(stats["mean"], 0.1 * mean, atol=8 * EPS)
    np.testing.assert_allclose(stats["var"], 0.9 + 0.1 * variance, atol=8 * EPS)
    scale, shift = applied(ours, variables | changed, X + 100, train=False)
    np.testing.assert_allclose(scale, 1 / np.sqrt(stats["var"] + 1e-5), rtol=8 * EPS)
    np.testing.assert_allclose(shift, -stats["mean"] * scale, atol=8 * EPS)


def test_only_its_input_is_kept_for_the_backward_pass():
    ours = BatchNormScales()
    variables = ours.init(jax.random.key(0), X, train=False)

    def scales(y):
        return applied(ours, variables, y, train=True)

    _, pull = jax.vjp(scales, X)
    kept = [leaf for leaf in jax.tree.leaves(pull) if leaf.shape == X.shape]
    assert len(kept) == 1


def test_strides_may_be_a_number_of_numpy(unchecked):
    several: Any = (np.int64(2), 2, (2, 2))
    x = jnp.ones((1, 8, 8, 4))
    shapes = [
        SparseConv(4, (3, 3), strides=strides).init_with_output(jax.random.key(0), x)[0].shape
        for strides in several
    ]
    assert shapes == [(1, 4, 4, 4)] * 3
