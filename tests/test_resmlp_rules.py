"""ResMLP with rules for activations and gradients: what they change, and what they save."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_resmlp
from tiny_resmlp import DEPTH, ROUNDING, tiny

from sparsemlp import (
    ActivationPooling,
    ActivationPruning,
    BlockMasking,
    GradientPruning,
    ResMLP,
    select_masks,
)

images, params = tiny_resmlp.images, tiny_resmlp.params


def run(model: ResMLP, params: Any, images: jax.Array) -> Any:
    """The logits of a training step."""
    return model.apply({"params": params}, images, train=True)


def gradients_of(model: ResMLP, params: Any, images: jax.Array) -> Any:
    """Gradients of a sum of squares of the logits."""

    def loss(params: Any) -> jax.Array:
        return jnp.sum(jnp.square(run(model, params, images)))

    return jax.jit(jax.grad(loss))(params)


def assert_close(found: Any, expected: Any) -> None:
    """Equal up to rounding, relative to the largest entry of each parameter."""
    for (path, a), b in zip(
        jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True
    ):
        bound = ROUNDING * max(1.0, float(jnp.max(jnp.abs(b))))
        np.testing.assert_allclose(a, b, rtol=0, atol=bound, err_msg=str(path))


@pytest.mark.parametrize(
    "changes",
    [
        {"remat": True},
        {"plan": {"*/XChannel?/kernel": ActivationPruning((4, 4), 0.0)}},
        {"plan": {"*/X*/kernel": (ActivationPooling((1, 1)), GradientPruning(2, 2))}},
    ],
    ids=["remat", "pruning at 0", "pooling of 1, gradients 2:2"],
)
def test_computing_again_and_dropping_nothing_change_no_gradient(params, images, changes):
    expected = gradients_of(tiny(), params, images)
    assert_close(gradients_of(tiny(**changes), params, images), expected)


def test_a_rule_for_activations_changes_the_gradients_of_its_kernels_and_of_no_other(
    params, images
):
    dense = gradients_of(tiny(), params, images)
    plan = {"*/XChannel2/kernel": ActivationPruning((4, 2), 0.7)}
    found = gradients_of(tiny(plan=plan), params, images)
    for index in range(DEPTH):
        name = f"block_{index}"
        pruned = found[name]["XChannel2"].pop("kernel")
        assert np.any(np.abs(pruned - dense[name]["XChannel2"].pop("kernel")) > ROUNDING)
    assert_close(found, dense)


def temporary_bytes(plan: Any) -> int:
    """What the compiled gradients of a model need."""
    model = ResMLP(dim=32, depth=4, plan=plan)
    images = jax.ShapeDtypeStruct((32, 32, 32, 3), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]

    def loss(params: Any, images: jax.Array) -> jax.Array:
        return jnp.sum(run(model, params, images))

    compiled = jax.jit(jax.grad(loss)).lower(params, images).compile()
    analysis: Any = compiled.memory_analysis()
    return analysis.temp_size_in_bytes


@pytest.fixture(scope="module")
def dense_bytes() -> int:
    return temporary_bytes({})


@pytest.mark.parametrize(
    "rule", [ActivationPruning((8, 8), 0.8), ActivationPooling((2, 2))], ids=["pruning", "pooling"]
)
def test_the_compiled_step_needs_less_memory_with_a_rule_for_activations(rule, dense_bytes):
    assert temporary_bytes({"*/X*/kernel": rule}) < 0.55 * dense_bytes


def logits_sum(model: ResMLP, params: Any, masks: Any, images: jax.Array) -> jax.Array:
    logits: Any = model.apply({"params": params, "masks": masks}, images)
    return jnp.sum(logits)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32], ids=["bfloat16", "float32"])
def test_a_model_needs_no_implicit_promotion(dtype):
    rules = (BlockMasking((2, 4), 0.5), ActivationPooling((2, 2)), GradientPruning(2, 4))
    model = ResMLP(
        image_size=8,
        patch_size=2,
        dim=8,
        depth=1,
        expansion=2,
        plan={"*/X*/kernel": rules},
        dtype=dtype,
    )
    images = jnp.ones((2, 8, 8, 3))
    gradients = jax.grad(functools.partial(logits_sum, model))
    # Dtypes meet when a program is traced.
    with jax.numpy_dtype_promotion("strict"):
        params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
        masks = jax.eval_shape(functools.partial(select_masks, plan=model.plan), params)
        gradient = jax.eval_shape(gradients, params, masks, images)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype(jnp.float32)}
