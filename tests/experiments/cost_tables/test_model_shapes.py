"""Presets have their sizes, and layers and blocks that do not fit are named."""

import pytest
from cost_tables.model_shapes import MODELS, check_blocks, masked_kinds, model_shapes

from sparsemlp import InputError
from sparsemlp.cost_models.costs import KINDS, Shapes


def test_sizes_are_the_presets_and_can_be_changed():
    assert model_shapes("resmlp_cifar10") == Shapes()
    assert model_shapes("resmlp_cifar10", depth=2, image_size=64) == Shapes(64, depth=2)
    for name in MODELS:
        assert model_shapes(name).tokens >= 64


def test_a_kind_without_a_number_is_both():
    assert masked_kinds("XPatch, XChannel") == list(KINDS)
    assert masked_kinds("XChannel2") == ["XChannel2"]


def test_what_does_not_fit_is_named():
    with pytest.raises(InputError, match="--model=vgg is unknown"):
        model_shapes("vgg")
    with pytest.raises(InputError, match="--image-size=30 is no multiple of the 4 pixels"):
        model_shapes("resmlp_cifar10", image_size=30)
    with pytest.raises(InputError, match="names 'Head'"):
        masked_kinds("XPatch,Head")
    with pytest.raises(InputError, match="names 'XPatc'"):
        masked_kinds("XPatc")
    check_blocks([(32, 32)], KINDS, Shapes())
    with pytest.raises(InputError, match="block 48x32 does not divide XPatch") as caught:
        check_blocks([(48, 32), (32, 32), (3, 64)], KINDS, Shapes())
    # Once of each block, and of those that divide every layer.
    assert str(caught.value).count("nearest that do: 32x32 or 64x32") == 1
    assert "nearest that do: 2x64 or 4x64" in str(caught.value)
    assert "32x32 does not" not in str(caught.value)
