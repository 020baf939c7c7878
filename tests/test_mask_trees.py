"""The masks that follow from a plan, as a tree like the parameters."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_planned_kernels
from flax import traverse_util
from test_plan import LARGE, OTHER, SMALL

from pallas_kernels.lists import ids_of
from sparsemlp import (
    BlockMask,
    BlockMasking,
    GridMask,
    InputError,
    ResMLP,
    SparseDense,
    check_masks,
    flatten_masks,
    select_blocks,
    select_masks,
)
from sparsemlp.mask_trees import list_masks, mask_shapes, mask_tree

params = test_planned_kernels.params


def test_masks_are_the_masked_part_of_the_parameters(params):
    plan = {"*/XPatch/kernel": LARGE, "block_1/XChannel1/kernel": OTHER}
    masks = select_masks(params, plan)
    assert set(flatten_masks(masks)) == {
        "block_0/XPatch/kernel",
        "block_1/XPatch/kernel",
        "block_1/XChannel1/kernel",
    }
    for path, mask in flatten_masks(masks).items():
        rule = LARGE if "XPatch" in path else OTHER
        kernel = params
        nested: Any = masks
        for key in path.split("/"):
            kernel, nested = kernel[key], nested[key]
        assert isinstance(nested, BlockMask)
        assert mask.kernel_shape == kernel.shape
        np.testing.assert_array_equal(
            mask.kept, select_blocks(kernel, rule.block, rule.ratio).kept, err_msg=path
        )


def test_the_score_of_a_rule_ranks_its_blocks(params):
    def smallest(blocks: jax.Array) -> jax.Array:
        return -jnp.max(jnp.abs(blocks), axis=(-2, -1))

    rule = BlockMasking((1, 1), 0.75, score=smallest)
    mask = flatten_masks(select_masks(params, {"head/kernel": rule}))["head/kernel"]
    magnitudes = np.abs(np.asarray(params["head"]["kernel"]))
    kept = np.asarray(mask.dense())
    assert magnitudes[kept].max() <= magnitudes[~kept].min()


def test_ratio_zero_and_an_empty_plan_give_no_mask(params):
    dense = BlockMasking((2, 2), 0.0)
    assert select_masks(params, {}) == {}
    assert select_masks(params, {"*/XPatch/kernel": dense}) == {}
    plan = {"*/XPatch/kernel": LARGE, "block_0/XPatch/kernel": dense}
    assert set(flatten_masks(select_masks(params, plan))) == {"block_1/XPatch/kernel"}


def test_masks_are_selected_inside_one_compiled_step(params):
    plan = {"*/XPatch/kernel": LARGE}
    traces = []

    @jax.jit
    def kept(params: dict[str, Any]) -> dict[str, jax.Array]:
        traces.append(params)
        return {path: mask.kept for path, mask in flatten_masks(select_masks(params, plan)).items()}

    moved = jax.tree.map(lambda leaf: jnp.flip(leaf, axis=0), params)
    assert {k: v.tolist() for k, v in kept(params).items()} != {
        k: v.tolist() for k, v in kept(moved).items()
    }
    assert len(traces) == 1


def test_a_plan_for_a_resmlp_also_works_where_it_is_part_of_a_larger_model():
    plan = {"*/XPatch/kernel": LARGE, "*/XChannel2/kernel": OTHER}

    class Larger(nn.Module):
        @nn.compact
        def __call__(self, images: jax.Array) -> jax.Array:
            tiny = ResMLP(8, 4, 3, dim=4, depth=2, expansion=2, plan=plan, name="body")
            return SparseDense(2, plan={"last/kernel": SMALL}, name="last")(tiny(images))

    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 8, 3)), jnp.float32)
    model = Larger()
    params = jax.jit(model.init)(jax.random.key(0), images)["params"]
    masks = select_masks(params, {**plan, "last/kernel": SMALL})
    assert set(masks) == {"body", "last"}
    assert set(masks["body"]) == {"block_0", "block_1"}
    assert set(masks["body"]["block_0"]) == {"XPatch", "XChannel2"}

    masked = jax.tree.map(jnp.copy, params)
    for path, mask in flatten_masks(masks).items():
        node = masked
        *parents, last = path.split("/")
        for key in parents:
            node = node[key]
        node[last] = node[last] * mask.dense()
    apply = jax.jit(model.apply)
    actual = apply({"params": params, "masks": masks}, images)
    # The same products of the same numbers, a few of them, of magnitude below 1.
    tolerance = 8 * np.finfo(np.float32).eps * math.sqrt(48)
    np.testing.assert_allclose(actual, apply({"params": masked}, images), atol=tolerance)
    assert not np.allclose(actual, apply({"params": params}, images), atol=tolerance)


def test_every_kernel_of_a_model_can_be_masked():
    model = ResMLP(8, 2, 3, 8, 1, 2, 4, plan={"*/kernel": BlockMasking((2, 2), 0.5)})
    images = jnp.ones((1, 8, 8, 3))
    params = model.init(jax.random.key(0), images)["params"]
    masks = select_masks(params, model.plan)
    assert {path.split("/")[0] for path in flatten_masks(masks)} == {"embed", "block_0", "head"}
    dense: Any = model.apply({"params": params}, images)
    masked: Any = model.apply({"params": params, "masks": {"head": masks["head"]}}, images)
    assert not np.array_equal(masked, dense)


def test_shapes_of_masks_are_those_that_are_selected(params):
    plan = {"*/XPatch/kernel": LARGE, "*/XChannel1/kernel": OTHER}
    shapes, masks = mask_shapes(params, plan), flatten_masks(select_masks(params, plan))
    assert list(shapes) == list(masks)
    for path, mask in masks.items():
        assert shapes[path].kept.shape == mask.kept.shape
        assert shapes[path].kernel_shape == mask.kernel_shape
        assert shapes[path].block == mask.block


def test_a_tree_of_masks_and_masks_by_path_say_the_same(params):
    masks = select_masks(params, {"*/XPatch/kernel": LARGE, "head/kernel": SMALL})
    flat = flatten_masks(masks)
    assert list(flat) == ["block_0/XPatch/kernel", "block_1/XPatch/kernel", "head/kernel"]
    again = mask_tree(flat)
    assert jax.tree.structure(again) == jax.tree.structure(masks)
    assert again["head"]["kernel"] is flat["head/kernel"]


def test_masks_of_every_masked_kernel_and_no_other_are_right(params):
    plan = {"*/XPatch/kernel": LARGE, "head/kernel": SMALL}
    masks = select_masks(params, plan)
    check_masks(masks, params, plan)
    check_masks({}, params, {})
    grids = mask_tree(
        {
            path: GridMask(mask.grid(), mask.kernel_shape, mask.block)
            for path, mask in flatten_masks(masks).items()
        }
    )
    check_masks(grids, params, plan)
    head, weights = masks["head"]["kernel"], params["head"]["kernel"]
    for wrong, words in (
        ({"params": masks}, "masks has one at params/block_0/XPatch/kernel, which the plan"),
        ({"head": {"kernel": head}}, "masks has none at block_0/XPatch/kernel, which the plan"),
        (
            masks | {"head": {"kernel": select_blocks(weights, (2, 2), 0.5)}},
            "of 2x2 blocks of a kernel",
        ),
        (masks | {"head": {"kernel": select_blocks(weights, (1, 1), 0.9)}}, "keeps 4 of 8 blocks"),
        (masks | {"head": {"kernel": jnp.ones((4, 2), bool)}}, "is not understood"),
    ):
        with pytest.raises(InputError, match=words):
            check_masks(wrong, params, plan)


def test_masks_that_were_restored_as_mappings_are_told(params):
    plan = {"*/kernel": SMALL}
    paths = flatten_masks(select_masks(params, plan))
    restored = traverse_util.unflatten_dict(
        {f"{path}/kept": mask.kept for path, mask in paths.items()}, sep="/"
    )
    with pytest.raises(InputError, match=r"mapping of kept here: .* as checkpointer\.restore"):
        check_masks(restored, params, plan)


def test_masks_of_an_engine_that_walks_lists_have_them(params):
    plan = {"*/XPatch/kernel": LARGE, "block_1/XChannel1/kernel": OTHER}
    plain = flatten_masks(select_masks(params, plan, "reference"))
    masks = flatten_masks(select_masks(params, plan, "mosaic"))
    assert masks.keys() == plain.keys()
    for path, mask in masks.items():
        assert plain[path].lists is None
        assert mask.lists is not None
        np.testing.assert_array_equal(ids_of(mask.lists), plain[path].kept)
        np.testing.assert_array_equal(mask.kept, plain[path].kept)
    alike = [masks[f"block_{i}/XPatch/kernel"].lists.rows.before for i in range(2)]
    assert alike[0] is alike[1], "kernels that are alike have one array for all"


def test_a_mask_that_keeps_all_or_none_and_a_grid_have_no_lists():
    full = BlockMask(jnp.arange(4, dtype=jnp.int32), (4, 4), (2, 2))
    none = BlockMask(jnp.zeros(0, jnp.int32), (4, 4), (2, 2))
    grid = GridMask(jnp.ones((2, 2), bool), (4, 4), (2, 2))
    masks = list_masks({"full": full, "none": none, "grid": grid}, "triton")
    assert masks == {"full": full, "none": none, "grid": grid}


def test_lists_of_an_engine_that_does_not_exist_are_refused():
    with pytest.raises(InputError, match="engine 'cuda'"):
        list_masks({}, "cuda")
