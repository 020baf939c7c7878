"""Plans: which parameter gets which rule."""

import itertools
from typing import Any

import jax.numpy as jnp
import pytest

from sparsemlp import ActivationPruning, BlockMasking, GradientPruning, select_masks
from sparsemlp.errors import InputError
from sparsemlp.plan import all_rules, masking_for, masks_alone, masks_any, rules_for

SMALL, LARGE, OTHER = (
    BlockMasking((1, 1), 0.5),
    BlockMasking((2, 2), 0.5),
    BlockMasking((2, 1), 0.2),
)
PATH = "block_0/XPatch/kernel"


@pytest.mark.parametrize(
    "pattern",
    ["block_0/XPatch/kernel", "*/XPatch/kernel", "block_?/XPatch/kernel", "*XPatch*", "block_0/*"],
)
def test_a_pattern_matches_a_whole_path_and_a_star_spans_slashes(pattern):
    assert masking_for({pattern: SMALL}, PATH) == SMALL
    assert masking_for({pattern: SMALL}, "body/head/kernel") is None


@pytest.mark.parametrize("pattern", ["XPatch/kernel", "block_0/XPatch", "*/xpatch/kernel"])
def test_a_part_of_a_path_or_another_case_does_not_match(pattern):
    assert masking_for({pattern: SMALL}, PATH) is None


def test_the_path_itself_matches_whatever_its_names_have_in_them():
    path = "enc[0]/kernel"
    assert masking_for({"enc[0]/kernel": SMALL}, path) == SMALL
    assert masking_for({"enc[0]/kernel": SMALL}, "enc0/kernel") == SMALL
    assert masking_for({"enc[0]/kernel": SMALL, "enc*/kernel": LARGE}, path) == SMALL


def test_the_most_specific_pattern_decides_in_whatever_order_the_plan_is_written():
    rules = {"*/kernel": SMALL, "*/XPatch/kernel": LARGE, "block_0/XPatch/kernel": OTHER}
    for order in itertools.permutations(rules.items()):
        plan = dict(order)
        assert masking_for(plan, PATH) == OTHER
        assert masking_for(plan, "block_1/XPatch/kernel") == LARGE
        assert masking_for(plan, "block_1/XChannel1/kernel") == SMALL


def test_equally_specific_patterns_that_disagree_are_an_error_that_names_both():
    clash = {"*_0/XPatch/kernel": SMALL, "b*0/XPatch/kernel": LARGE}
    for order in itertools.permutations(clash.items()):
        with pytest.raises(InputError) as caught:
            masking_for(dict(order), PATH)
        for part in (*clash, "block_0/XPatch/kernel", "BlockMasking", "equally specific"):
            assert part in str(caught.value)


@pytest.mark.parametrize("pattern", ["*block_0/XPatch/kernel", "block_[0-9]/XPatch/kernel"])
def test_the_path_itself_decides_against_any_pattern(pattern):
    assert masking_for({pattern: SMALL, PATH: OTHER}, PATH) == OTHER


def test_a_set_of_characters_is_a_wildcard():
    plan = {"block_[0123456789]/XPatch/kernel": SMALL, "block_?/XPatch/kerne[!x]": LARGE}
    assert masking_for(plan, PATH) == SMALL


@pytest.mark.parametrize("value", [[SMALL], None, "32x32", (SMALL, 0.5)])
def test_what_is_no_rule_is_refused(unchecked, value):
    with pytest.raises(InputError, match=r"pattern '\*/kernel' has .* which is no rule"):
        masking_for({"*/kernel": value}, PATH)


def test_no_plan_is_the_empty_one_and_what_is_no_mapping_is_refused(unchecked):
    params = {"layer": {"kernel": jnp.ones((8, 8))}}
    assert select_masks(params, None) == select_masks(params, {}) == {}
    rule: Any = SMALL
    with pytest.raises(InputError, match=r"plan .* maps no patterns to rules"):
        select_masks(params, rule)


@pytest.mark.parametrize("pattern", ["*", "*?*"])
def test_a_pattern_of_wildcards_alone_matches_everything_and_yields_to_any_other(pattern):
    assert masking_for({pattern: SMALL}, PATH) == SMALL
    assert masking_for({pattern: SMALL, "*/kernel": LARGE}, PATH) == LARGE


def test_equally_specific_patterns_that_agree_are_no_error():
    plan = {"*_0/XPatch/kernel": SMALL, "b*0/XPatch/kernel": SMALL}
    assert masking_for(plan, PATH) == SMALL


def test_rules_of_different_kinds_stand_side_by_side():
    pruning = ActivationPruning((1, 1), 0.5)
    together = rules_for({"*/kernel": (SMALL, pruning), "*/XPatch/kernel": LARGE}, PATH)
    assert together == {BlockMasking: LARGE, ActivationPruning: pruning}


def test_all_rules_are_those_of_every_pattern():
    pruning = GradientPruning(2, 4)
    assert all_rules({}) == []
    assert all_rules({"*/a": SMALL, "*/b": (LARGE, pruning)}) == [SMALL, LARGE, pruning]


def test_a_tie_below_the_most_specific_pattern_does_not_matter():
    plan = {"*_0/XPatch/kernel": SMALL, "b*0/XPatch/kernel": LARGE, PATH: OTHER}
    assert masking_for(plan, PATH) == OTHER


@pytest.mark.parametrize("pattern", [1, ("layer", "kernel")])
def test_a_pattern_is_text(unchecked, pattern):
    kernel = {"layer": {"kernel": jnp.ones((4, 4))}}
    with pytest.raises(InputError, match="is no text: write the path of a kernel with slashes"):
        select_masks(kernel, {pattern: SMALL})


def test_two_rules_of_a_kind_in_one_pattern_are_refused():
    with pytest.raises(InputError, match="'a/kernel' has two rules of the kind BlockMasking"):
        rules_for({"a/kernel": (SMALL, LARGE)}, "a/kernel")


@pytest.mark.parametrize(("ratio", "masks"), [(0.0, False), (1e-9, True), (0.8, True)])
def test_a_plan_masks_if_a_ratio_is_above_zero(ratio, masks):
    pruning = ActivationPruning((2, 2), 0.5)
    assert masks_any({"*/a": (BlockMasking((2, 2), ratio), pruning)}) == masks
    assert not masks_any({"*/a": pruning})
    assert masks_alone({"*/a": BlockMasking((2, 2), ratio)})
    assert not masks_alone({"*/a": (BlockMasking((2, 2), ratio), pruning)})
