"""Model strings: what they mean, and where a malformed one goes wrong."""

import itertools

import pytest

from sparsemlp import (
    ActivationPooling,
    ActivationPruning,
    BlockMasking,
    GradientPruning,
    ResMLP,
    parse_model,
)
from sparsemlp.errors import InputError
from sparsemlp.model_string import LAYER_PATTERNS
from sparsemlp.plan import masking_for, rules_for

XPATCH = "block_3/XPatch/kernel"
XCHANNEL1 = "block_3/XChannel1/kernel"
XCHANNEL2 = "block_3/XChannel2/kernel"


def test_the_examples_of_the_thesis_parse():
    depth, plan = parse_model("ResMLP12 @ XPatch=masked 0.5 (2, 2); XChannel=masked 0.3 (1, 1);")
    assert depth == 12
    assert masking_for(plan, XPATCH) == BlockMasking((2, 2), 0.5)
    assert masking_for(plan, XCHANNEL1) == BlockMasking((1, 1), 0.3)
    assert masking_for(plan, XCHANNEL2) == BlockMasking((1, 1), 0.3)
    for other in ("embed", "head", "norm"):
        assert rules_for(plan, f"{other}/kernel") == {}


def test_the_block_is_written_rows_first():
    _, plan = parse_model("ResMLP5 @ XPatch = masked 0.5 (4, 1);")
    assert masking_for(plan, XPATCH) == BlockMasking((4, 1), 0.5)


@pytest.mark.parametrize("text", ["ResMLP5", "ResMLP5 @", "  ResMLP 5  "])
def test_a_depth_alone_is_a_dense_model(text):
    depth, plan = parse_model(text)
    assert depth == 5
    assert dict(plan) == {}


@pytest.mark.parametrize(
    "text",
    [
        "ResMLP5@XPatch=masked 0.5(2,2);XChannel=masked 0.3(1,1);",
        "  ResMLP5  @\n  XPatch\t=\tmasked 0.5 ( 2 , 2 ) ;\n  XChannel = masked .3 (1, 1);\n",
        "ResMLP5 @ XPatch = masked\n0.5\n(2,\n2)\n; XChannel = masked 0.30 (1, 1) ;",
        "ResMLP5 @ XChannel = masked 0.3 (1, 1); XPatch = masked 0.5 (2, 2);",
    ],
)
def test_white_space_and_order_are_free(text):
    expected = parse_model("ResMLP5 @ XPatch = masked 0.5 (2, 2); XChannel = masked 0.3 (1, 1);")
    assert parse_model(text) == expected


@pytest.mark.parametrize("reverse", [False, True])
def test_xchannel2_outranks_xchannel(reverse):
    clauses = ["XChannel = masked 0.3 (1, 1);", "XChannel2 = masked 0.8 (4, 4);"]
    _, plan = parse_model("ResMLP5 @ " + " ".join(clauses[::-1] if reverse else clauses))
    assert masking_for(plan, XCHANNEL1) == BlockMasking((1, 1), 0.3)
    assert masking_for(plan, XCHANNEL2) == BlockMasking((4, 4), 0.8)


def test_ratio_zero_for_xchannel1_leaves_it_dense_beside_a_masked_xchannel():
    _, plan = parse_model("ResMLP5 @ XChannel = masked 0.3 (1, 1); XChannel1 = masked 0 (1, 1);")
    assert masking_for(plan, XCHANNEL1) is None
    assert masking_for(plan, XCHANNEL2) == BlockMasking((1, 1), 0.3)


def test_backward_and_score_come_from_the_call():
    _, plan = parse_model(
        "ResMLP5 @ XPatch = masked 0.5 (2, 2);", backward="dense", score="spectral"
    )
    assert masking_for(plan, XPATCH) == BlockMasking((2, 2), 0.5, "dense", "spectral")


def test_sparse_is_activation_pruning():
    _, plan = parse_model("ResMLP5 @ XPatch = sparse 0.5 (8, 16);")
    assert rules_for(plan, XPATCH) == {ActivationPruning: ActivationPruning((8, 16), 0.5)}


@pytest.mark.parametrize(
    ("tail", "rule"),
    [
        ("(2, 4)", ActivationPooling((2, 4))),
        ("(2, 4) (1, 1)", ActivationPooling((2, 4))),
        ("(2, 4) max", ActivationPooling((2, 4))),
        ("(2, 4) (1, 1) mean nearest 0.5", ActivationPooling((2, 4), "mean")),
        ("(2, 4) 0.5", ActivationPooling((2, 4))),
        ("(2, 4) mean 1e-3", ActivationPooling((2, 4))),
    ],
)
def test_compressed_is_activation_pooling(tail, rule):
    _, plan = parse_model(f"ResMLP5 @ XPatch = compressed {tail};")
    assert rules_for(plan, XPATCH) == {ActivationPooling: rule}


@pytest.mark.parametrize(
    ("tail", "rule"),
    [
        ("2:4", GradientPruning(2, 4)),
        ("1 : 8 rescaled", GradientPruning(1, 8, "rescaled")),
        ("2:4 random", GradientPruning(2, 4, "random")),
    ],
)
def test_gradient_is_gradient_pruning(tail, rule):
    _, plan = parse_model(f"ResMLP5 @ XPatch = gradient {tail};")
    assert rules_for(plan, XPATCH) == {GradientPruning: rule}


def test_a_plus_joins_rules_for_different_operands_in_any_order():
    rules = [BlockMasking((2, 2), 0.5), ActivationPruning((8, 8), 0.7), GradientPruning(2, 4)]
    words = ["masked 0.5 (2, 2)", "sparse 0.7 (8, 8)", "gradient 2:4"]
    for order in itertools.permutations(range(3)):
        _, plan = parse_model(f"ResMLP5 @ XPatch = {' + '.join(words[i] for i in order)};")
        assert rules_for(plan, XPATCH) == {type(rule): rule for rule in rules}


def test_the_plan_belongs_to_a_resmlp():
    depth, plan = parse_model("ResMLP3 @ XPatch = masked 0.5 (2, 2);")
    assert ResMLP(depth=depth, plan=plan) == ResMLP(
        depth=3, plan={LAYER_PATTERNS["XPatch"]: BlockMasking((2, 2), 0.5)}
    )


MALFORMED = [
    # The caret belongs under the character that stands between the two bars.
    ("||", "ResMLP and a depth"),
    ("|r|esmlp5", "ResMLP and a depth"),
    ("ResMLP||", "the depth"),
    ("ResMLP|4.5|", "an integer"),
    ("ResMLP|0|", "a depth of at least 1"),
    (f"ResMLP|{'9' * 5000}|", "the depth, as in ResMLP5, of at most 9 digits"),
    ("ResMLP5 |X|Patch = masked 0.5 (2, 2);", "@ between"),
    ("ResMLP5 @ |X|Pach = masked 0.5 (2, 2);", "unknown layer kind 'XPach'"),
    ("ResMLP5 @ |X|Channel3 = masked 0.5 (2, 2);", "unknown layer kind 'XChannel3'"),
    ("ResMLP5 @ XPatch |m|asked 0.5 (2, 2);", "= after the layer kind"),
    ("ResMLP5 @ XPatch = |m|aksed 0.5 (2, 2);", "masked, sparse, compressed or gradient"),
    ("ResMLP5 @ XPatch = |0|.5 (2, 2);", "a rule: masked, sparse, compressed or gradient"),
    ("ResMLP5 @ XPatch = masked |(|2, 2);", "the ratio"),
    ("ResMLP5 @ XPatch = masked |-|0.5 (2, 2);", "the ratio"),
    ("ResMLP5 @ XPatch = masked |1|.5 (2, 2);", "outside [0, 1)"),
    ("ResMLP5 @ XPatch = masked 0.5 |2|, 2;", "the block, as (32, 32)"),
    ("ResMLP5 @ XPatch = masked 0.5 (2 |2|);", "the block, as (32, 32)"),
    ("ResMLP5 @ XPatch = masked 0.5 (|2|.5, 2);", "an integer"),
    ("ResMLP5 @ XPatch = masked 0.5 (2, 2|;|", "closing parenthesis"),
    ("ResMLP5 @ XPatch = masked 0.5 |(|0, 2);", "sides of at least 1"),
    ("ResMLP5 @ XPatch = masked 0.5 (2, 2)||", "; after the rule"),
    ("ResMLP5 @ XPatch = masked 0.5 (2, 2) |X|Channel = masked 0.3 (1, 1);", "; after the rule"),
    ("ResMLP5 @ XPatch = masked 0.5 (2, 2); |X|Patch = masked 0.3 (1, 1);", "has a rule already"),
    ("ResMLP5 @ XPatch = masked 0.5 (2, 2); |;|", "a layer kind"),
    ("ResMLP5 @ XPatch = gradient |r|escaled;", "N of N:M"),
    ("ResMLP5 @ XPatch = gradient 2|;|", ": between N and M"),
    ("ResMLP5 @ XPatch = gradient |5|:4;", "0 < N <= M"),
    ("ResMLP5 @ XPatch = gradient |2|:64;", "more than 32"),
    ("ResMLP5 @ XPatch = gradient |2|:4 largest;", "'largest' is unknown"),
    ("ResMLP5 @ XPatch = masked 0.5 (2, 2) + |m|asked 0.3 (1, 1);", "the weight has a rule"),
    ("ResMLP5 @ XPatch = sparse 0.5 (2, 2) + |c|ompressed (2, 2);", "the activation has a rule"),
    ("ResMLP5 @ XPatch = masked 0.5 (2, 2) +|;|", "a rule: masked"),
    ("ResMLP5 @ XPatch = compressed |0|.5;", "the window"),
    ("ResMLP5 @ XPatch = compressed (2, 2) a b |c|;", "; after the rule"),
    ("ResMLP5 @ XPatch = masked 0.5 (|é|, 2);", "unreadable character"),
]


@pytest.mark.parametrize(("text", "says"), MALFORMED, ids=lambda s: s[:80])
def test_the_caret_lies_under_the_place_that_is_wrong(text, says):
    place, malformed = text.index("|"), text.replace("|", "")
    with pytest.raises(InputError) as caught:
        parse_model(malformed)
    problem, shown, caret = str(caught.value).split("\n")
    assert says in problem
    assert caret.strip() == "^"
    assert shown.endswith(malformed)
    margin = len(shown) - len(malformed)
    assert caret.index("^") == margin + place


def test_the_caret_lies_right_also_behind_line_breaks_and_tabs():
    malformed = "ResMLP5 @\n\tXPatch = masked 0.5 (2, 2);\n\tXPatsh = masked 0.5 (2, 2);"
    with pytest.raises(InputError, match="unknown layer kind 'XPatsh'") as caught:
        parse_model(malformed)
    _, shown, caret = str(caught.value).split("\n")
    assert "\t" not in shown
    assert shown[caret.index("^") :].startswith("XPatsh")


def test_the_same_kind_twice_is_an_error_also_with_equal_rules():
    with pytest.raises(InputError, match="XChannel2 has a rule already"):
        parse_model("ResMLP5 @ XChannel2 = masked 0.5 (2, 2); XChannel2 = masked 0.5 (2, 2);")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"backward": "both"}, "backward 'both'"), ({"score": "l3"}, "score 'l3'")],
)
def test_options_are_checked_whether_the_string_masks_or_not(unchecked, options, message):
    with pytest.raises(InputError, match=message):
        parse_model("ResMLP5", **options)


def test_what_is_no_text_is_refused(unchecked):
    with pytest.raises(InputError, match="model string None is no text: write one such as"):
        parse_model(None)  # pyright: ignore[reportArgumentType]
