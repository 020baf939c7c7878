"""Budgets: the layers together keep what was asked, small ones a larger share."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp.blocks import n_kept_blocks
from sparsemlp.budgets import erk_densities, global_ratios, share_out, with_ratios
from sparsemlp.configuration.program import mask_density
from sparsemlp.errors import InputError
from sparsemlp.mask_trees import flatten_masks, select_masks
from sparsemlp.plan import layer_rules, masking_for
from sparsemlp.planned_kernels import masked_kernels
from sparsemlp.rules import BlockMasking, GradientPruning

RESMLP = {"token": (64, 64), "expand": (64, 256), "contract": (256, 64)}


def shapes(kernels: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    return {n: {"kernel": jax.ShapeDtypeStruct(s, jnp.float32)} for n, s in kernels.items()}


@pytest.mark.parametrize("density", [0.05, 0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("kernels", [RESMLP, {"a": (8, 8), "b": (3, 3, 64, 128), "c": (512, 10)}])
def test_the_layers_together_keep_the_density(kernels, density):
    found = erk_densities(kernels, density)
    sizes = {name: math.prod(shape) for name, shape in kernels.items()}
    kept = sum(found[name] * sizes[name] for name in kernels)
    assert kept == pytest.approx(density * sum(sizes.values()))
    assert all(0 < share <= 1 for share in found.values())


def test_unless_a_layer_is_whole_densities_stand_like_sides_over_products():
    found = erk_densities(RESMLP, 0.2)
    assert found["token"] / found["expand"] == pytest.approx((128 / 64**2) / (320 / (64 * 256)))
    assert found["expand"] == pytest.approx(found["contract"])


def test_a_layer_that_would_keep_more_than_all_is_whole_and_the_others_get_the_rest():
    found = erk_densities({"tiny": (4, 4), "large": (400, 400)}, 0.2)
    assert found["tiny"] == 1
    assert found["large"] == pytest.approx((0.2 * (16 + 160000) - 16) / 160000)


def test_every_kernel_gets_its_own_ratio_and_keeps_its_other_rules():
    params = shapes(RESMLP)
    gradient = GradientPruning(2, 4)
    plan = {"*/kernel": (BlockMasking((16, 16), 0.8), gradient)}
    shared = share_out(params, plan, "erk")
    found = erk_densities(RESMLP, 1 - 0.8)
    for name in RESMLP:
        rules = layer_rules(shared, f"{name}/kernel")
        assert rules.masking is not None
        assert rules.masking.ratio == pytest.approx(1 - found[name])
        assert rules.gradient == gradient
    # Each layer rounds up to whole blocks: at most one block of each too many.
    assert 0.2 <= mask_density(params, shared) <= 0.2 + 3 * 256 / (64 * 64 + 2 * 64 * 256)


def test_a_whole_layer_counts_in_the_density_of_the_run():
    params = shapes({"tiny": (4, 4), "large": (400, 400)})
    shared = share_out(params, {"*/kernel": BlockMasking((4, 4), 0.8)}, "erk")
    assert masking_for(shared, "tiny/kernel") is None
    kept = (
        16
        + math.ceil(
            10_000
            * (1 - (1 - erk_densities({"tiny": (4, 4), "large": (400, 400)}, 1 - 0.8)["large"]))
        )
        * 16
    )
    np.testing.assert_allclose(mask_density(params, shared), kept / (16 + 160000))


def test_uniform_leaves_the_plan_as_it_is():
    plan = {"*/kernel": BlockMasking((16, 16), 0.8)}
    assert share_out(shapes(RESMLP), plan, "uniform") is plan
    assert share_out(shapes(RESMLP), {}, "erk") == {}


def test_a_rule_for_exactly_one_kernel_is_replaced():
    plan = {"token/kernel": (BlockMasking((4, 4), 0.5), GradientPruning(2, 4))}
    shared = share_out(shapes(RESMLP), plan, "erk")
    assert layer_rules(shared, "token/kernel").gradient == GradientPruning(2, 4)


def test_several_ratios_and_unknown_budgets_are_refused(unchecked):
    plan = {"token/kernel": BlockMasking((4, 4), 0.5), "expand/kernel": BlockMasking((4, 4), 0.8)}
    with pytest.raises(InputError, match=r"the plan has 0\.5, 0\.8: give every layer the same"):
        share_out(shapes(RESMLP), plan, "erk")
    with pytest.raises(InputError, match="choose one of uniform, erk, global"):
        share_out(shapes(RESMLP), plan, "fair")  # pyright: ignore[reportArgumentType]


def normals(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    scales = {"token": 3.0, "expand": 1.0, "contract": 0.1}
    return {
        name: {"kernel": jnp.float32(scales[name] * rng.normal(size=shape))}
        for name, shape in RESMLP.items()
    }


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.8, 0.95])
def test_a_global_budget_keeps_the_largest_blocks_of_all_layers(ratio):
    params = normals()
    plan = {"*/kernel": BlockMasking((16, 16), ratio)}
    fixed = with_ratios(params, plan, global_ratios(params, plan))
    masks = flatten_masks(select_masks(params, fixed))
    kept = {path: mask.n_kept for path, mask in masks.items()}
    norms = {
        path: np.linalg.norm(
            np.asarray(params[path.split("/")[0]]["kernel"]).reshape(
                mask.grid_shape[0], 16, mask.grid_shape[1], 16
            ),
            axis=(1, 3),
        ).ravel()
        for path, mask in masks.items()
    }
    n_blocks = sum(map(len, norms.values()))
    n_kept = math.ceil(n_blocks * (1 - ratio))
    threshold = np.sort(np.concatenate(list(norms.values())))[::-1][n_kept - 1]
    expected = {path: max(1, int((found >= threshold).sum())) for path, found in norms.items()}
    # The layer of small weights keeps its best block even if that is none of the largest.
    surplus = sum(expected.values()) - n_kept
    assert sum(kept.values()) == n_kept
    # What a run says at its start, when the blocks are not ranked yet.
    assert mask_density(params, plan, "global") == mask_density(params, fixed)
    assert kept["contract/kernel"] == expected["contract/kernel"] >= 1
    assert sum(abs(kept[path] - expected[path]) for path in kept) == surplus


def test_a_global_budget_keeps_a_block_of_each_layer_at_least():
    params, plan = normals(), {"*/kernel": BlockMasking((16, 16), 0.999)}
    fixed = with_ratios(params, plan, global_ratios(params, plan))
    assert [mask.n_kept for mask in flatten_masks(select_masks(params, fixed)).values()] == [1] * 3
    assert mask_density(params, plan, "global") == mask_density(params, fixed)


def test_blocks_that_are_nan_rank_first_among_all_layers():
    """As where a layer alone selects: what is broken is seen, not dropped."""
    params, plan = normals(), {"*/kernel": BlockMasking((16, 16), 0.95)}
    whole = params["contract"]["kernel"]
    params["contract"]["kernel"] = whole.at[:48, 0].set(jnp.nan)
    fixed = with_ratios(params, plan, global_ratios(params, plan))
    masks = flatten_masks(select_masks(params, fixed))
    assert masks["contract/kernel"].n_kept == 3
    assert np.asarray(masks["contract/kernel"].grid())[:3, 0].all()


def test_a_layer_that_keeps_all_its_blocks_stays_masked():
    params = normals()
    plan = {"*/kernel": BlockMasking((16, 16), 0.8)}
    ratios = global_ratios(params, plan)
    assert 0 < ratios["token/kernel"] < 1e-1
    masks = flatten_masks(select_masks(params, with_ratios(params, plan, ratios)))
    assert masks["token/kernel"].n_kept == masks["token/kernel"].n_blocks


@pytest.mark.parametrize("n_blocks", [1, 3, 16, 180, 4096])
def test_ratios_give_their_number_of_blocks_in_floating_point(n_blocks):
    for n_kept in {1, n_blocks // 2 + 1, n_blocks}:
        assert n_kept_blocks(n_blocks, 1 - (n_kept - 0.5) / n_blocks) == n_kept


def test_a_global_budget_compares_blocks_of_one_size_by_one_score():
    plan = {"token/kernel": BlockMasking((4, 4), 0.5), "expand/kernel": BlockMasking((8, 8), 0.5)}
    with pytest.raises(InputError, match=r"shares out one block, the plan has \(4, 4\), \(8, 8\)"):
        share_out(shapes(RESMLP), plan, "global")


@pytest.mark.parametrize("pattern", ["conv_[2-8]/kernel", "*conv_2/kernel", "*"])
def test_what_was_shared_out_holds_whatever_pattern_the_plan_has(pattern):
    """A pattern may have as many characters as the path of a kernel, or more."""
    params = shapes({"conv_2": (16, 32), "conv_3": (64, 64)})
    plan: dict[str, Any] = {pattern: BlockMasking((4, 4), 0.8)}
    wanted = {"conv_2/kernel": 0.3, "conv_3/kernel": 0.9}
    if "conv_2" in pattern:
        plan["*"] = BlockMasking((4, 4), 0.8)
    shared = with_ratios(params, plan, wanted)
    found = {path: rule.ratio for path, _, rule in masked_kernels(params, shared)}
    assert found == wanted
