"""The kernels that a plan names: what it has to match, and the masks that follow from it."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_plan import LARGE, OTHER, SMALL

from sparsemlp import BlockMasking, check_plan, flatten_masks, select_masks
from sparsemlp.errors import InputError
from sparsemlp.planned_kernels import block_counts


@pytest.fixture(scope="module")
def params() -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def linear(n_in: int, n_out: int) -> dict[str, jax.Array]:
        kernel = jnp.asarray(rng.normal(size=(n_in, n_out)), jnp.float32)
        return {"kernel": kernel, "bias": jnp.zeros(n_out)}

    def block() -> dict[str, Any]:
        return {"XPatch": linear(4, 4), "XChannel1": linear(4, 8), "norm": {"scale": jnp.ones(4)}}

    return {"block_0": block(), "block_1": block(), "head": linear(4, 2)}


def test_a_pattern_that_matches_nothing_lists_the_kernels(params):
    with pytest.raises(InputError) as caught:
        select_masks(params, {"*/XPatch/kernel": SMALL, "*/XPach/kernel": SMALL})
    message = str(caught.value)
    assert "'*/XPach/kernel' matches no parameter" in message
    for block in ("block_0", "block_1"):
        assert f"{block}/XPatch/kernel" in message
        assert f"{block}/XChannel1/kernel" in message
    assert "head/kernel" in message
    assert "bias" not in message
    assert "scale" not in message


@pytest.mark.parametrize(
    ("pattern", "victim"),
    [("*/XPatch/*", "block_0/XPatch/bias"), ("block_1/norm/scale", "block_1/norm/scale")],
)
def test_a_pattern_that_matches_no_kernel_names_the_parameter_and_the_way_out(
    params, pattern, victim
):
    with pytest.raises(InputError) as caught:
        check_plan(params, {pattern: SMALL})
    for part in (repr(pattern), victim, "kernels [in, out]", "end the pattern in /kernel"):
        assert part in str(caught.value)


def test_a_block_that_does_not_divide_names_the_layer(params):
    plan = {"*/XPatch/kernel": LARGE, "*/XChannel1/kernel": BlockMasking((3, 2), 0.5)}
    with pytest.raises(InputError) as caught:
        select_masks(params, plan)
    for part in ("block 3x2", "block_0/XChannel1/kernel", "8x4", "out 8 % 3 != 0", "2x2 or 4x2"):
        assert part in str(caught.value)


def test_a_block_that_does_not_divide_a_kernel_without_a_layer_is_refused_too():
    with pytest.raises(InputError, match="block 3x3 does not divide kernel"):
        check_plan({"kernel": jnp.ones((8, 8))}, {"kernel": BlockMasking((3, 3), 0.5)})


def test_a_plan_is_checked_against_shapes_alone(params):
    shapes = jax.eval_shape(lambda: params)
    check_plan(shapes, {"*/XPatch/kernel": LARGE})
    with pytest.raises(InputError, match="block_0/XPatch/kernel"):
        check_plan(shapes, {"*/XPatch/kernel": BlockMasking((3, 3), 0.5)})


def test_block_counts_follow_the_order_of_the_masks(params):
    plan = {"*/XPatch/kernel": LARGE, "*/XChannel1/kernel": OTHER}
    counts, masks = block_counts(params, plan), flatten_masks(select_masks(params, plan))
    assert list(counts) == list(masks)
    assert list(counts.values()) == [mask.n_blocks for mask in masks.values()]


def test_of_stacked_kernels_it_says_how_to_select():
    params = {"layers": {"kernel": jnp.ones((3, 8, 8))}}
    with pytest.raises(InputError, match=r"\(3, 8, 8\).*of stacked layers .* jax.vmap"):
        check_plan(params, {"*/kernel": BlockMasking((4, 4), 0.5)})


def test_masks_of_a_stack_are_selected_with_its_patterns_alone():
    kernels = jax.random.normal(jax.random.key(0), (3, 8, 8))
    of_stack = {"blocks/up/kernel": BlockMasking((4, 4), 0.5)}
    masks = jax.vmap(lambda stack: select_masks({"blocks": stack}, of_stack))(
        {"up": {"kernel": kernels}}
    )
    for i, kernel in enumerate(kernels):
        own = select_masks({"blocks": {"up": {"kernel": kernel}}}, of_stack)
        assert jax.tree.all(jax.tree.map(lambda a, b, i=i: jnp.all(a[i] == b), masks, own))


@pytest.mark.parametrize("name", ["bias", "scale", "embedding"])
def test_what_has_as_many_axes_as_a_kernel_is_told_by_its_name(name):
    params = {"layer": {"kernel": jnp.ones((4, 4)), name: jnp.ones((4, 4))}}
    with pytest.raises(InputError, match=f"layer/{name} of shape .*end the pattern in /kernel"):
        select_masks(params, {"layer/*": BlockMasking((2, 2), 0.5)})


def test_what_is_no_tree_of_parameters_is_refused(unchecked):
    with pytest.raises(InputError, match=r"type NoneType are no nested mapping.*\['params'\]"):
        select_masks(None, {"layer/kernel": BlockMasking((2, 2), 0.5)})  # pyright: ignore[reportArgumentType]


def test_parameters_in_boxes_are_refused_with_the_way_out():
    boxed = {"layer": {"kernel": nn.Partitioned(jnp.ones((4, 4)), (None, None))}}
    with pytest.raises(InputError, match=r"'kernel'.* in a box.*unbox"):
        select_masks(boxed, {"layer/kernel": BlockMasking((2, 2), 0.5)})


def test_parameters_in_lists_are_refused_with_the_way_out():
    params = {"layers": [{"kernel": jnp.ones((4, 4))}]}
    with pytest.raises(InputError, match=r"\['layers'\]\[0\].* in a list .*nested mappings"):
        select_masks(params, {"*/kernel": BlockMasking((2, 2), 0.5)})


def test_all_variables_of_a_model_are_no_parameters():
    variables = {"params": {"layer": {"kernel": jnp.ones((4, 4))}}}
    with pytest.raises(InputError, match=r"give variables\['params'\]"):
        select_masks(variables, {"*/kernel": BlockMasking((2, 2), 0.5)})


def test_a_layer_may_be_called_params():
    layer = {"params": {"kernel": jnp.ones((4, 4)), "bias": jnp.ones(4)}}
    masks = select_masks(layer, {"*/kernel": BlockMasking((2, 2), 0.5)})
    assert masks["params"]["kernel"].n_kept == 2
