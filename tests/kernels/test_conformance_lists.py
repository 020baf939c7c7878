"""Lists of kept blocks that were made before, with those of other kernels."""

from collections.abc import Mapping

import jax
import numpy as np
import pytest
from conformance import (
    AXES,
    EVERY_ENGINE,
    PATTERNS,
    SMALL,
    compiled,
    draw,
    skip_unless_able,
    small_mask,
)

from pallas_kernels import ENGINES
from sparsemlp.mask_trees import list_masks
from sparsemlp.masks import BlockMask, Mask

ONE = list(PATTERNS)[2]
"""The third of the masks: its lists are neither the first nor the last of those made together."""


def masks_with_lists(engine: str) -> Mapping[str, Mask]:
    return list_masks({name: small_mask(kept) for name, kept in PATTERNS.items()}, engine)


@EVERY_ENGINE
@AXES
def test_lists_made_before_change_no_bit(engine, axis):
    plain, with_lists = small_mask(PATTERNS[ONE]), masks_with_lists(engine)[ONE]
    skip_unless_able(engine, plain, axis, "float32")
    assert isinstance(with_lists, BlockMask)
    assert (with_lists.lists is not None) == ENGINES[engine].takes_lists
    operands = draw(SMALL, axis, "float32", plain)
    expected = compiled(operands, engine, axis, "masked")
    found = compiled(operands._replace(mask=with_lists), engine, axis, "masked")
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@AXES
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_an_engine_that_takes_no_lists_leaves_them_aside(engine, axis):
    plain, with_lists = small_mask(PATTERNS[ONE]), masks_with_lists("triton")[ONE]
    skip_unless_able(engine, plain, axis, "float32")
    operands = draw(SMALL, axis, "float32", plain)
    expected = compiled(operands, engine, axis, "masked")
    found = compiled(operands._replace(mask=with_lists), engine, axis, "masked")
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_lists_say_the_same_of_a_mask():
    for name, mask in masks_with_lists("mosaic").items():
        plain = small_mask(PATTERNS[name])
        assert isinstance(mask, BlockMask)
        np.testing.assert_array_equal(mask.grid(), plain.grid())
        np.testing.assert_array_equal(mask.dense(), plain.dense())
        assert (mask.n_kept, mask.density) == (plain.n_kept, plain.density)
        again = BlockMask.of(mask.kept_blocks, mask.kernel_shape, mask.block)
        np.testing.assert_array_equal(again.kept, plain.kept)
        assert jax.tree.structure(again) == jax.tree.structure(mask)
