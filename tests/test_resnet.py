"""ResNet-9 against the same network put together from Flax's own layers."""

import functools
from typing import Any, cast

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
    InputError,
    ResNet9,
    select_masks,
)

SIZE, WIDTH, BATCH = 12, 4, 8
"""The last layer normalises by a pixel an image: of 3 images Flax's gradients are off by 1%."""
IMAGES = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, SIZE, SIZE, 3)), jnp.float32)
INNER = "conv_[2-8]/kernel"


class Plain(nn.Module):
    """The network from Flax's layers, under the names of ours."""

    @nn.compact
    def __call__(self, x, train):
        def layer(index, x, features, size=3, strides=1, padding=None):
            y = nn.Conv(
                features,
                (size, size),
                (strides, strides),
                size // 2 if padding is None else padding,
                use_bias=False,
                name=f"conv_{index}",
            )(x)
            norm = nn.BatchNorm(not train, momentum=0.9, epsilon=1e-5, name=f"norm_{index}")
            return nn.relu(norm(y))

        x = layer(1, x, WIDTH)
        x = layer(2, x, 2 * WIDTH, size=5, strides=2)
        x = x + layer(4, layer(3, x, 2 * WIDTH), 2 * WIDTH)
        x = nn.max_pool(layer(5, x, 4 * WIDTH), (2, 2), (2, 2))
        x = x + layer(7, layer(6, x, 4 * WIDTH), 4 * WIDTH)
        x = layer(8, x, 2 * WIDTH, padding=0)
        return 0.2 * nn.Dense(10, use_bias=False, name="head")(jnp.max(x, axis=(1, 2)))


def build(**changes) -> ResNet9:
    return ResNet9(image_size=SIZE, width=WIDTH, **changes)


@functools.cache
def variables():
    return build().init(jax.random.key(0), IMAGES)


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradients(model, params, masks, rng):
    def loss(params):
        logits, changed = model.apply(
            {"params": params, "masks": masks, "batch_stats": variables()["batch_stats"]},
            IMAGES,
            train=True,
            mutable=["batch_stats"],
            rngs={"gradient": rng},
        )
        return jnp.mean(jnp.square(logits - 1)), changed["batch_stats"]

    return jax.value_and_grad(loss, has_aux=True)(params)


def gradients(model):
    masks = select_masks(variables()["params"], model.plan)
    return loss_and_gradients(model, variables()["params"], masks, jax.random.key(0))


def assert_close(actual, expected, bound):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=bound * max(1e-3, np.abs(b).max()))


def test_it_has_the_parameters_of_the_paper():
    shapes = jax.eval_shape(
        ResNet9().init, jax.random.key(0), jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    )
    sizes = jax.tree.map(lambda leaf: leaf.size, shapes["params"])
    assert sum(jax.tree.leaves(sizes)) == 9_088_128
    statistics = sum(leaf.size for leaf in jax.tree.leaves(shapes["batch_stats"]))
    assert statistics == 2 * (128 + 3 * 256 + 3 * 512 + 256)


def test_it_is_the_network_of_plain_layers():
    @jax.jit
    def plain(params):
        def loss(params):
            logits, changed = Plain().apply(
                {"params": params, "batch_stats": variables()["batch_stats"]},
                IMAGES,
                True,
                mutable=["batch_stats"],
            )
            return jnp.mean(jnp.square(logits - 1)), changed["batch_stats"]

        return jax.value_and_grad(loss, has_aux=True)(params)

    (loss, stats), found = gradients(build())
    (plain_loss, plain_stats), wanted = plain(variables()["params"])
    np.testing.assert_allclose(loss, plain_loss, rtol=1e-5)
    # Rounding in eight normalised layers adds up; either is within 1e-5 of float64. A gradient that
    # asked which pixel equals a maximum would be lost where XLA rounds the two otherwise, as it
    # does without optimisation.
    assert_close(found, wanted, 1e-4)
    for name, own in stats.items():
        np.testing.assert_allclose(own["mean"], plain_stats[name]["mean"], atol=1e-5)
    y: Any = build().apply(variables(), IMAGES)
    expected: Any = Plain().apply(variables(), IMAGES, False)
    np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [build(remat=True), build(plan={INNER: ActivationPruning((3, 1), 1e-9)})],
    ids=["remat", "every block kept"],
)
def test_computing_again_changes_no_gradient(model):
    (loss, _), found = gradients(model)
    (expected, _), wanted = gradients(build())
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert_close(found, wanted, 1e-3)


def test_rules_change_gradients_and_not_the_loss():
    plan = {INNER: (ActivationPruning((3, 4), 0.5), GradientPruning(2, 4, "rescaled"))}
    (loss, _), found = gradients(build(plan=plan))
    (expected, _), plain = gradients(build())
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    for index in range(2, 9):
        own, other = (g[f"conv_{index}"]["kernel"] for g in (found, plain))
        assert np.abs(own - other).max() > 1e-3 * np.abs(other).max()


def test_masks_drop_blocks_of_every_inner_convolution():
    model = build(plan={INNER: BlockMasking((4, 4), 0.75)})
    masks = select_masks(variables()["params"], model.plan)
    assert set(masks) == {f"conv_{index}" for index in range(2, 9)}
    _, found = gradients(model)
    for name, own in masks.items():
        mask = own["kernel"]
        gradient = np.asarray(found[name]["kernel"]).reshape(mask.kernel_shape)
        assert not gradient[~np.asarray(mask.dense())].any()
        assert gradient.any()


@pytest.mark.parametrize(
    "rule", [ActivationPruning((3, 4), 0.5), ActivationPooling((3, 3))], ids=["pruned", "pooled"]
)
def test_under_a_rule_only_outputs_of_convolutions_are_kept_whole(rule):
    plan = {"conv_[2-4]/kernel": rule, "conv_6/kernel": rule}

    def kept(model):
        def loss(params):
            logits, _ = model.apply(
                {**variables(), "params": params}, IMAGES, train=True, mutable=["batch_stats"]
            )
            return jnp.sum(logits)

        pull = jax.eval_shape(lambda p: jax.vjp(loss, p)[1], variables()["params"])
        return [leaf.shape for leaf in jax.tree.leaves(pull) if len(leaf.shape) == 4]

    first = (BATCH, SIZE, SIZE, WIDTH)
    assert kept(build(plan=plan)).count(first) == 1
    assert kept(build()).count(first) > 1


def test_the_compiled_step_needs_less_memory_where_tensors_are_computed_again():
    def temporary_bytes(**changes: Any) -> int:
        model = ResNet9(image_size=16, width=16, **changes)
        images = jax.ShapeDtypeStruct((64, 16, 16, 3), jnp.float32)
        own = jax.eval_shape(model.init, jax.random.key(0), images)

        def loss(params, stats, images):
            logits: Any = model.apply({"params": params, "batch_stats": stats}, images, train=True)
            return jnp.sum(logits)

        lowered = jax.jit(jax.grad(loss)).lower(own["params"], own["batch_stats"], images)
        analysis: Any = lowered.compile().memory_analysis()
        return analysis.temp_size_in_bytes

    dense = temporary_bytes()
    assert temporary_bytes(remat=True) < 0.9 * dense
    assert temporary_bytes(plan={INNER: ActivationPruning((8, 8), 0.8)}) < dense


def test_bfloat16_computes_in_it_and_gives_float32_logits():
    model = build(dtype=jnp.bfloat16)
    y = jax.jit(model.apply)(variables(), IMAGES)
    assert y.dtype == jnp.float32
    wide: Any = build().apply(variables(), IMAGES)
    np.testing.assert_allclose(y, wide, atol=0.1)


@pytest.mark.parametrize(
    ("model", "images", "message"),
    [
        (ResNet9(), IMAGES, r"images of shape \(8, 12, 12, 3\) do not fit .* \[batch, 32, 32, 3\]"),
        (ResNet9(width=0), IMAGES, "width=0 is too small: it must be at least 1"),
        (ResNet9(image_size=8), IMAGES[:, :8, :8], "8x8 pixels are too small for ResNet-9"),
    ],
)
def test_images_that_do_not_fit_are_refused(model, images, message):
    with pytest.raises(InputError, match=message):
        model.init(jax.random.key(0), images)


def test_no_images_have_no_logits():
    model = ResNet9(image_size=12, width=4)
    variables = jax.jit(model.init)(jax.random.key(0), IMAGES)
    logits = cast(jax.Array, model.apply(variables, IMAGES[:0]))
    assert logits.shape == (0, 10)
