"""Block geometry: reading, writing, dividing, and how many blocks a ratio keeps."""

import math
from typing import Any

import numpy as np
import pytest

from sparsemlp.blocks import (
    block_grid,
    check_block,
    check_ratio,
    format_block,
    n_kept_blocks,
    nearest_blocks,
    parse_block,
    parse_shape,
)
from sparsemlp.errors import InputError


@pytest.mark.parametrize(
    ("text", "block"),
    [("32x32", (32, 32)), ("4x1", (4, 1)), ("1x4", (1, 4)), (" 4 x 2 ", (4, 2)), ("10x3", (10, 3))],
)
def test_a_block_is_read_rows_first(text, block):
    assert parse_block(text) == block


def test_a_shape_is_read_inputs_first():
    assert parse_shape("384x1536") == (384, 1536)
    with pytest.raises(InputError, match=r"^--shape '0x64' is not INxOUT: two positive integers"):
        parse_shape("0x64")


@pytest.mark.parametrize("block", [(1, 1), (4, 1), (1, 64), (128, 32)])
def test_a_block_is_written_the_way_it_is_read(block):
    assert parse_block(format_block(block)) == block


MALFORMED = ["32x", "x32", "0x4", "4x0", "-1x2", "", "x", "4", "4x4x4", "4.0x4", "4 4", "fourx4"]


@pytest.mark.parametrize("text", [*MALFORMED, f"{'9' * 5000}x1"], ids=lambda text: text[:6])
def test_a_malformed_block_is_named_with_the_form_and_an_example(text):
    with pytest.raises(InputError) as caught:
        parse_block(text)
    message = str(caught.value)
    assert repr(text) in message
    assert "two positive integers" in message
    assert parse_block(message.split()[-1]) == (4, 1)
    assert "\n" not in message


@pytest.mark.parametrize("block", [(0, 1), (1, 0), (-2, 2), (1, 2, 3), (1.5, 2), 32])
def test_a_block_is_two_positive_integers(block, unchecked):
    with pytest.raises(InputError) as caught:
        check_block(block)
    assert repr(block) in str(caught.value)


@pytest.mark.parametrize("ratio", [1.0, -0.1, 2.0, math.inf, -math.inf, math.nan])
def test_a_ratio_outside_zero_to_one_is_named_with_its_meaning(ratio):
    with pytest.raises(InputError) as caught:
        check_ratio(ratio)
    message = str(caught.value)
    assert repr(ratio) in message
    assert "[0, 1)" in message
    assert "fraction of blocks to drop" in message


@pytest.mark.parametrize("ratio", [0.0, 0.5, math.nextafter(1, 0)])
def test_a_ratio_from_zero_to_just_below_one_is_accepted(ratio):
    check_ratio(ratio)
    assert 1 <= n_kept_blocks(7, ratio) <= 7


def test_the_published_case_0_7_of_960_keeps_289():
    assert n_kept_blocks(960, 0.7) == n_kept_blocks(960, np.float64(0.7)) == 289


def test_a_ratio_that_was_rounded_to_float32_is_refused(unchecked):
    """It would keep two of ten blocks at 0.9."""
    narrow: Any = np.float32(0.9)
    assert n_kept_blocks(10, 0.9) == 1
    assert n_kept_blocks(10, float(narrow)) == 2
    with pytest.raises(InputError, match=r"of type float32 is no number of Python's.*such as 0.8"):
        n_kept_blocks(10, narrow)


@pytest.mark.parametrize("n_blocks", [1, 2, 3, 10, 960, 16384])
def test_ratio_zero_keeps_every_block(n_blocks):
    assert n_kept_blocks(n_blocks, 0.0) == n_blocks


def test_the_kept_share_never_lies_below_the_target_and_less_than_one_block_above():
    for n_blocks in (1, 3, 4, 16, 100, 960, 4096):
        for tenths in range(10):
            kept = n_kept_blocks(n_blocks, tenths / 10)
            # In tenths, exact integers; the published floats may keep one block more.
            wanted = n_blocks * (10 - tenths)
            assert wanted <= 10 * kept <= wanted + 10


def test_the_grid_of_a_kernel_counts_columns_down_and_rows_across():
    in_features, out_features = 6, 20
    assert block_grid((in_features, out_features), (4, 1)) == (6, 5)
    assert block_grid((in_features, out_features), (1, 3)) == (2, 20)


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ((7, 32), "1536x384: out 1536 % 7 != 0; nearest"),
        ((32, 7), "1536x384: in 384 % 7 != 0; nearest"),
        ((7, 5), "1536x384: out 1536 % 7 != 0 and in 384 % 5 != 0; nearest"),
    ],
)
def test_a_block_that_does_not_divide_names_the_layer_and_the_side(block, says):
    with pytest.raises(InputError) as caught:
        block_grid((384, 1536), block, "block_3/XChannel1/kernel")
    message = str(caught.value)
    assert f"block {format_block(block)}" in message
    assert "block_3/XChannel1/kernel" in message
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("kernel_shape", "block"),
    [((196, 196), (32, 32)), ((64, 256), (48, 3)), ((6, 10), (4, 4)), ((5, 7), (100, 2))],
)
def test_the_nearest_blocks_divide_and_no_divisor_lies_closer(kernel_shape, block):
    in_features, out_features = kernel_shape
    proposals = nearest_blocks(kernel_shape, block)
    assert proposals
    with pytest.raises(InputError) as caught:
        block_grid(kernel_shape, block)
    for proposal in proposals:
        block_grid(kernel_shape, proposal)
        assert format_block(proposal) in str(caught.value).split("nearest")[1]
        for features, size, proposed in zip(
            (out_features, in_features), block, proposal, strict=True
        ):
            between = range(min(size, proposed) + 1, max(size, proposed))
            assert not any(features % d == 0 for d in between)


def test_a_196_token_layer_is_told_28_and_49_instead_of_32():
    assert nearest_blocks((196, 196), (32, 32)) == [(28, 28), (49, 49)]


@pytest.mark.parametrize("kernel_shape", [(0, 8), (8, 0)])
def test_an_empty_kernel_has_no_blocks(kernel_shape):
    with pytest.raises(InputError, match=r"head, whose .* is empty"):
        block_grid(kernel_shape, (4, 4), "head")
