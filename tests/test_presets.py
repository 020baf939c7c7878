"""The published models by their exact parameter counts."""

import math

import jax
import jax.numpy as jnp
import pytest

import sparsemlp
from sparsemlp import BlockMasking, ResMLP, check_plan
from sparsemlp.errors import InputError
from sparsemlp.planned_kernels import block_counts

PUBLISHED = {
    "resmlp_cifar10": 192_074,
    "resmlp_imagenet": 15_607_912,
    "resmlp_s12": 15_350_872,
    "resmlp_s24": 30_020_680,
    "resmlp_s36": 44_690_488,
    "resmlp_b24": 129_138_280,
}
EVERY_LAYER = {"*/XPatch/kernel": (1, 1), "*/XChannel?/kernel": (1, 1)}


def shapes(model: ResMLP) -> dict:
    images = jnp.zeros((1, model.image_size, model.image_size, model.channels))
    return jax.eval_shape(model.init, jax.random.key(0), images)["params"]


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_a_preset_has_exactly_the_published_number_of_parameters(name, count):
    model = getattr(sparsemlp, name)()
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes(model))) == count


def test_184320_weights_of_the_cifar10_model_are_maskable():
    plan = {pattern: BlockMasking(block, 0.5) for pattern, block in EVERY_LAYER.items()}
    counts = block_counts(shapes(sparsemlp.resmlp_cifar10()), plan)
    assert len(counts) == 3 * 5
    assert sum(counts.values()) == 184_320


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("cifar10", 64), ("imagenet", 256), ("s12", 196), ("s24", 196), ("s36", 196), ("b24", 784)],
)
def test_a_preset_has_the_published_number_of_tokens(name, tokens):
    model = getattr(sparsemlp, f"resmlp_{name}")(depth=1)
    assert shapes(model)["block_0"]["XPatch"]["kernel"].shape == (tokens, tokens)


def test_keywords_change_any_field_of_a_preset():
    plan = {"*/XPatch/kernel": BlockMasking((32, 32), 0.8)}
    model = sparsemlp.resmlp_cifar10(plan=plan, depth=2, n_classes=7, dtype=jnp.bfloat16)
    expected = ResMLP(32, 4, 3, 64, 2, 4, 7, plan=plan, dtype=jnp.bfloat16)
    assert model == expected


def test_32x32_blocks_divide_the_channels_of_s12_but_not_its_196_tokens():
    params, rule = shapes(sparsemlp.resmlp_s12(depth=1)), BlockMasking((32, 32), 0.8)
    check_plan(params, {"*/XChannel?/kernel": rule})
    with pytest.raises(InputError) as caught:
        check_plan(params, {"*/XPatch/kernel": rule})
    for part in ("block 32x32", "block_0/XPatch/kernel", "196 % 32 != 0", "28x28 or 49x49"):
        assert part in str(caught.value)
