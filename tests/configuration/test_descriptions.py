"""A configuration in a few words."""

import pytest

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.descriptions import describe_masking, describe_run


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (Config(), "dense"),
        (Config(block="4x2", ratio=0.0), "dense"),
        (Config(activation="8x8:0.7"), "dense, activations 8x8:0.7"),
        (
            Config(ratio=0.8, gradient="2:4"),
            "32x32 at 0.8, masked backward, gradients 2:4 magnitude",
        ),
        (Config(block=" 4 x 2", ratio=0.5), "4x2 at 0.5, masked backward"),
        (Config(ratio=0.8, backward="dense"), "32x32 at 0.8, dense backward"),
        (
            Config(ratio=0.8, mask_layers="XPatch"),
            "32x32 at 0.8 in XPatch, masked backward",
        ),
        (
            Config(config="ResMLP2 @ XPatch = masked 0.5 (2, 2);"),
            "ResMLP2 @ XPatch = masked 0.5 (2, 2); masked backward",
        ),
        (Config(config="ResMLP5"), "ResMLP5"),
        (
            Config(config="ResMLP2 @ XPatch = sparse 0.7 (8, 8);"),
            "ResMLP2 @ XPatch = sparse 0.7 (8, 8)",
        ),
    ],
)
def test_masking_in_a_few_words(config, expected):
    assert describe_masking(config) == expected


def test_a_model_is_named_once():
    options = describe_run(Config(ratio=0.8, seed=3), "digits")
    assert options == "ResMLP 32x32 at 0.8, masked backward, digits, seed 3"
    string = describe_run(Config(config="ResMLP2 @ XPatch = sparse 0.7 (8, 8);"), "digits")
    assert string == "ResMLP2 @ XPatch = sparse 0.7 (8, 8), digits, seed 0"
