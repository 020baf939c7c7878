"""Rules: what can be written, and what is refused at once."""

import math
from typing import Any

import pytest

from sparsemlp import ActivationPooling, ActivationPruning, BlockMasking, GradientPruning
from sparsemlp.errors import InputError
from sparsemlp.rules import check_backward, check_built


def test_a_masking_rule_is_masked_backward_and_l2_unless_told():
    rule = BlockMasking((2, 2), 0.5)
    assert (rule.backward, rule.score) == ("masked", "l2")


def test_equal_rules_are_equal_and_hash_alike():
    assert BlockMasking((2, 2), 0.5) == BlockMasking((2, 2), 0.5)
    assert len({BlockMasking((2, 2), 0.5), BlockMasking((2, 2), 0.5)}) == 1
    assert BlockMasking((2, 2), 0.5) != BlockMasking((2, 2), 0.5, "dense")
    assert BlockMasking((2, 4), 0.5) != BlockMasking((4, 2), 0.5)


@pytest.mark.parametrize("kind", [BlockMasking, ActivationPruning])
@pytest.mark.parametrize(
    ("block", "ratio", "says"),
    [
        ((0, 2), 0.5, "block (0, 2)"),
        ((2, -1), 0.5, "block (2, -1)"),
        ((2, 2), 1.0, "ratio 1.0 is outside [0, 1)"),
        ((2, 2), -0.1, "ratio -0.1 is outside [0, 1)"),
        ((2, 2), math.nan, "ratio nan is outside [0, 1)"),
    ],
)
def test_a_rule_refuses_a_bad_block_or_ratio_when_it_is_written(kind, block, ratio, says):
    with pytest.raises(InputError) as caught:
        kind(block, ratio)
    assert says in str(caught.value)


def test_an_unknown_backward_mode_is_named_with_the_known_ones(unchecked):
    unknown: Any = "unmasked"
    with pytest.raises(InputError) as caught:
        BlockMasking((2, 2), 0.5, unknown)
    assert "backward 'unmasked'" in str(caught.value)
    for mode in ("masked", "dense", "straight_through"):
        assert mode in str(caught.value)
        assert check_backward(mode) == mode


def test_an_unknown_score_is_named_with_the_known_ones():
    with pytest.raises(InputError, match="score 'max' is unknown: choose one of l2, spectral, l1"):
        BlockMasking((2, 2), 0.5, score="max")


def test_a_pooling_window_has_positive_sides():
    with pytest.raises(InputError, match=r"\(0, 2\)"):
        ActivationPooling((0, 2))


@pytest.mark.parametrize(("n", "m"), [(0, 4), (5, 4), (-1, 4)])
def test_n_of_m_keeps_between_one_and_m(n, m):
    with pytest.raises(InputError, match=f"{n}:{m} is not N:M with 0 < N <= M"):
        GradientPruning(n, m)


@pytest.mark.parametrize(
    "rule", [ActivationPruning((2, 2), 0.5), ActivationPooling((2, 2)), GradientPruning(2, 4)]
)
def test_rules_that_no_product_uses_say_that_they_are_not_built_yet(rule):
    with pytest.raises(InputError) as caught:
        check_built(None, BlockMasking((2, 2), 0.5), rule)
    assert type(rule).__name__ in str(caught.value)
    assert "not built yet" in str(caught.value)


def test_masking_and_no_rule_are_built():
    check_built(None, BlockMasking((2, 2), 0.5))


def test_an_unknown_way_to_prune_or_pool_is_named_with_the_known_ones(unchecked):
    with pytest.raises(InputError, match="'largest' is unknown: choose random, magnitude or resc"):
        GradientPruning(2, 4, "largest")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="'max' is unknown: choose mean"):
        ActivationPooling((2, 2), "max")  # pyright: ignore[reportArgumentType]


def test_a_ratio_that_is_no_number_is_refused(unchecked):
    with pytest.raises(InputError, match=r"ratio '0\.5' is outside \[0, 1\)"):
        BlockMasking((1, 1), "0.5")  # pyright: ignore[reportArgumentType]
