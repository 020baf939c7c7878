"""The plan that a Flax module is given."""

from typing import Any

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import pytest
from flax.core import freeze

from sparsemlp import (
    ActivationPruning,
    BlockMasking,
    InputError,
    ResMLP,
    ResNet9,
    SparseConv,
    SparseDense,
    flatten_masks,
    select_blocks,
    select_masks,
)

SMALL: dict[str, Any] = {"image_size": 8, "dim": 8, "depth": 1, "n_classes": 2}
SMALL_RESNET: dict[str, Any] = {"image_size": 12, "width": 4, "n_classes": 2}
IMAGES = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
PRUNING = ActivationPruning((2, 2), 0.5)
MASKING = BlockMasking((4, 4), 0.5)


def init(model: nn.Module, images: jax.ShapeDtypeStruct = IMAGES) -> None:
    jax.eval_shape(model.init, jax.random.key(0), images)


@pytest.mark.parametrize("remat", [False, True])
def test_a_pattern_that_matches_nothing_is_an_error_when_parameters_are_made(remat):
    """Also of a rule that needs no mask, whose patterns `select_masks` never sees."""
    init(ResMLP(**SMALL, remat=remat, plan={"*/XPatch/kernel": PRUNING}))
    with pytest.raises(InputError, match=r"'\*/XPacth/kernel' matches no parameter"):
        init(ResMLP(**SMALL, remat=remat, plan={"*/XPacth/kernel": PRUNING}))
    images = jax.ShapeDtypeStruct((1, 12, 12, 3), jnp.float32)
    with pytest.raises(InputError, match="'conv_9/kernel' matches no parameter"):
        init(ResNet9(image_size=12, width=4, plan={"conv_9/kernel": PRUNING}), images)


def test_the_plan_of_a_model_inside_another_may_be_meant_for_the_whole():
    class Two(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            plan = {"body/*/XPatch/kernel": PRUNING, "head/kernel": PRUNING}
            body = ResMLP(**SMALL, plan=plan, name="body")
            return SparseDense(2, plan=plan, name="head")(body(x))

    init(Two())


@pytest.mark.parametrize("module", [ResMLP, ResNet9])
def test_no_plan_is_the_empty_plan(unchecked, module):
    absent: Any = None
    assert module(plan=absent).plan == {}
    assert SparseDense(2, plan=absent).plan == SparseConv(2, (1, 1), plan=absent).plan == {}


@pytest.mark.parametrize("module", [ResMLP, ResNet9])
def test_masks_that_the_model_would_pass_over_are_refused(module):
    small = SMALL if module is ResMLP else SMALL_RESNET
    size = small["image_size"]
    plan = {"*/XPatch/kernel" if module is ResMLP else "conv_2/kernel": MASKING}
    model, images = module(**small, plan=plan), jnp.ones((1, size, size, 3))
    variables = model.init(jax.random.key(0), images)
    masks = select_masks(variables["params"], plan)

    def apply(masks: Any) -> None:
        jax.eval_shape(lambda v, m: model.apply({**v, "masks": m}, images), variables, masks)

    for right in (masks, freeze(masks), {}):
        apply(right)
    model.apply(freeze({**variables, "masks": masks}), images)
    flat = flatten_masks(masks)
    (path,) = flat
    for wrong in (flat, {"params": masks}, {"block_9": masks}):
        with pytest.raises(InputError, match="as select_masks returns it"):
            apply(wrong)
    with pytest.raises(InputError, match=rf"has \['{path}'\], and the model no such"):
        apply(flat)


def test_a_dense_mask_is_refused_by_a_model_as_by_a_layer(unchecked):
    model, images = ResMLP(**SMALL), jnp.ones((1, 8, 8, 3))
    params = model.init(jax.random.key(0), images)["params"]
    masks = {"block_0": {"XPatch": {"kernel": jnp.ones((4, 4), bool)}}}
    with pytest.raises(InputError, match="is not understood: pass a BlockMask"):
        model.apply({"params": params, "masks": masks}, images)


def test_masks_restored_as_mappings_are_refused_with_the_way_out():
    model, x = SparseDense(8, plan={"kernel": BlockMasking((4, 4), 0.5)}), jnp.ones((1, 8))
    params = model.init(jax.random.key(0), x)["params"]
    masks = select_masks(params, model.plan)
    restored: Any = flax.serialization.msgpack_restore(flax.serialization.to_bytes(masks))
    with pytest.raises(
        InputError,
        match=r"mapping of .*block.* as flax\.serialization\.",
    ):
        model.apply({"params": params, "masks": restored}, x)


def test_a_mask_in_the_place_of_its_layer_is_refused_with_the_way_out():
    model, x = nn.Sequential([SparseDense(8)]), jnp.ones((1, 8))
    params = model.init(jax.random.key(0), x)["params"]
    mask = select_blocks(jnp.eye(8), (4, 4), 0.5)
    with pytest.raises(InputError, match="no mapping for layer layers_0: a mask lies where its"):
        model.apply({"params": params, "masks": {"layers_0": mask}}, x)


@pytest.mark.parametrize("plan", [MASKING, [("*/kernel", MASKING)], "dense"], ids=str)
def test_what_maps_no_patterns_to_rules_is_no_plan(unchecked, plan):
    with pytest.raises(InputError, match="maps no patterns to rules"):
        SparseDense(2, plan=plan)
