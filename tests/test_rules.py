"""Rules: what can be written, and what is refused at once."""

import math
import re
from typing import Any

import jax.numpy as jnp
import pytest

from sparsemlp import (
    ActivationPooling,
    ActivationPruning,
    BlockMasking,
    GradientPruning,
    sparse_conv,
    sparse_linear,
)
from sparsemlp.errors import InputError
from sparsemlp.rules import check_backward, parse_activation, parse_gradient


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


def test_activations_are_not_ranked_by_gradients():
    with pytest.raises(InputError, match="an activation has none: choose one of l2"):
        ActivationPruning((2, 2), 0.5, score="gradient")


def test_a_pooling_window_has_positive_sides():
    with pytest.raises(InputError, match=r"\(0, 2\)"):
        ActivationPooling((0, 2))


@pytest.mark.parametrize(("n", "m"), [(0, 4), (5, 4), (-1, 4), (2.0, 4.0), ("2", 4)])
def test_n_of_m_keeps_between_one_and_m(n, m, unchecked):
    with pytest.raises(InputError, match=f"{n!r}:{m!r} is not N:M with integers 0 < N <= M"):
        GradientPruning(n, m)


def test_a_group_has_at_most_32_entries():
    assert GradientPruning(16, 32).m == 32
    with pytest.raises(InputError, match="16:33 groups more than 32 entries"):
        GradientPruning(16, 33)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("8x8:0.7", ActivationPruning((8, 8), 0.7)),
        (" 4x1 : .5 ", ActivationPruning((4, 1), 0.5)),
        ("mean:2x4", ActivationPooling((2, 4))),
    ],
)
def test_an_activation_rule_is_read(text, rule):
    assert parse_activation(text) == rule


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("8x8", "neither ROWSxCOLS:RATIO"),
        ("8x8:", "neither ROWSxCOLS:RATIO"),
        ("8:0.5", "block '8' is not ROWSxCOLS"),
        ("8x8:1.5", "outside [0, 1)"),
        ("8x8:-0.5", "neither ROWSxCOLS:RATIO"),
        ("max:2x2", "neither ROWSxCOLS:RATIO"),
        ("mean:2", "window '2' is not TOKENSxFEATURES"),
    ],
)
def test_a_malformed_activation_rule_is_named_with_the_forms(text, says):
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        parse_activation(text)
    assert repr(text) in str(caught.value)


def test_a_gradient_rule_is_read():
    assert parse_gradient(" 2:4", "rescaled") == GradientPruning(2, 4, "rescaled")


@pytest.mark.parametrize("text", ["2", "2:", "2:4:8", "two:four", "2.0:4"])
def test_a_malformed_gradient_rule_is_named_with_the_form(text):
    with pytest.raises(InputError, match=f"gradient rule {text!r} is not N:M: two integers"):
        parse_gradient(text, "magnitude")


def test_an_unknown_way_to_prune_or_pool_is_named_with_the_known_ones(unchecked):
    with pytest.raises(
        InputError, match="'largest' is unknown: choose one of random, magnitude, resc"
    ):
        GradientPruning(2, 4, "largest")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="'max' is unknown: choose mean"):
        ActivationPooling((2, 2), "max")  # pyright: ignore[reportArgumentType]


def test_a_ratio_that_is_no_number_is_refused(unchecked):
    with pytest.raises(InputError, match=r"ratio '0\.5' of type str is no number.*such as 0\.8"):
        BlockMasking((1, 1), "0.5")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"gradient": "2:4"}, "gradient '2:4' is no rule .* give GradientPruning"),
        ({"activation": (8, 8)}, r"activation \(8, 8\) is no rule .* give ActivationPruning or"),
        ({"activation": BlockMasking((8, 8), 0.5)}, "activation BlockMasking.* is no rule"),
        ({"gradient": ActivationPruning((8, 8), 0.5)}, "gradient ActivationPruning.* is no rule"),
    ],
)
def test_what_is_no_rule_for_an_operand_is_refused_before_anything_is_computed(
    unchecked, rules, message
):
    with pytest.raises(InputError, match=message):
        sparse_linear(jnp.ones((8, 8)), jnp.ones((8, 8)), **rules)
    with pytest.raises(InputError, match=message):
        sparse_conv(jnp.ones((1, 8, 8, 8)), jnp.ones((3, 3, 8, 8)), **rules)
