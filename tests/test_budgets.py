"""Budgets: the layers together keep what was asked, small ones a larger share."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp.budgets import erk_densities, share_out
from sparsemlp.errors import InputError
from sparsemlp.plan import layer_rules, masking_for
from sparsemlp.program import mask_density
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
        rules = layer_rules(shared, (name, "kernel"))
        assert rules.masking is not None
        assert rules.masking.ratio == pytest.approx(1 - found[name])
        assert rules.gradient == gradient
    # Each layer rounds up to whole blocks: at most one block of each too many.
    assert 0.2 <= mask_density(params, shared) <= 0.2 + 3 * 256 / (64 * 64 + 2 * 64 * 256)


def test_a_whole_layer_counts_in_the_density_of_the_run():
    params = shapes({"tiny": (4, 4), "large": (400, 400)})
    shared = share_out(params, {"*/kernel": BlockMasking((4, 4), 0.8)}, "erk")
    assert masking_for(shared, ("tiny", "kernel")) is None
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
    assert layer_rules(shared, ("token", "kernel")).gradient == GradientPruning(2, 4)


def test_several_ratios_and_unknown_budgets_are_refused(unchecked):
    plan = {"token/kernel": BlockMasking((4, 4), 0.5), "expand/kernel": BlockMasking((4, 4), 0.8)}
    with pytest.raises(InputError, match=r"the plan has 0\.5, 0\.8: give every layer the same"):
        share_out(shapes(RESMLP), plan, "erk")
    with pytest.raises(InputError, match=r"budget 'fair' is unknown: choose one of uniform, erk"):
        share_out(shapes(RESMLP), plan, "fair")  # pyright: ignore[reportArgumentType]
