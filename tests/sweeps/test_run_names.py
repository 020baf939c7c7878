"""Names tell runs apart, and no shell or file system stumbles over them."""

import re
import shlex

import pytest

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.settings import resolve
from sparsemlp.sweeps.run_names import distinct, run_name, safe_name


def named(*swept: str, **options) -> str:
    return run_name(resolve(Config(**options), "cifar10"), swept)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"block": "32x32", "ratio": 0.8}, "32x32-0.8-masked-seed0"),
        ({"block": "4x1", "ratio": 0.5, "backward": "dense"}, "4x1-0.5-dense-seed0"),
        ({"ratio": 0.75}, "32x32-0.75-masked-seed0"),
        ({"seed": 7}, "dense-seed7"),
        ({"activation": "8x8:0.7"}, "activation-8x8-0.7-seed0"),
        ({"ratio": 0.5, "gradient": "2:4"}, "32x32-0.5-masked-gradient-2-4-magnitude-seed0"),
        (
            {"config": "ResMLP5 @ XPatch = masked 0.5 (2, 2);"},
            "ResMLP5-XPatch-masked-0.5-2-2-masked-seed0",
        ),
        (
            {"gradient": "2:4", "gradient_method": "rescaled"},
            "gradient-2-4-rescaled-seed0",
        ),
        ({"model": "resnet9"}, "resnet9-dense-seed0"),
    ],
)
def test_a_name_says_what_is_trained(options, name):
    assert named(**options) == name


def test_what_a_grid_lists_besides_follows():
    assert named("ratio", "lr", ratio=0.5, lr=0.02) == "32x32-0.5-masked-lr-0.02-seed0"
    assert named("weight_decay", weight_decay=1.0) == "dense-weight_decay-1-seed0"


@pytest.mark.parametrize(
    "text",
    ["$(touch pwned)", "a; rm -rf /", "../../etc", "-rf", ".hidden", "a\nb", "'\"`&|<>*?", "", "é"],
)
def test_a_name_is_safe_whatever_characters_a_text_has(text):
    name = safe_name(text)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", name)
    assert shlex.quote(name) == name


def test_a_long_model_string_is_cut_and_still_tells_runs_apart():
    clauses = "XPatch=masked 0.5 (2, 2) + sparse 0.5 (8, 8) + gradient 2:4; "
    strings = [
        f"ResMLP5 @ {clauses}XChannel1=masked 0.5 (2, 2) + sparse 0.5 (8, 8); "
        f"XChannel2=masked 0.{n} (2, 2);"
        for n in range(1, 9)
    ]
    names = [named(config=string) for string in strings]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 100 and name.endswith("-seed0") for name in names)


def test_a_taken_name_gets_a_checksum():
    settings = resolve(Config(), "digits")
    assert distinct("a", settings, {"b"}) == "a"
    second = distinct("A", settings, {"a"})
    third = distinct("A", settings, {"a", second.casefold()})
    assert len({"a", second, third}) == 3
    assert second.startswith("A-")
