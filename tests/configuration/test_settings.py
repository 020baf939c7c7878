"""Defaults that depend on the data set or on each other, and what options mean together."""

import dataclasses
import fnmatch
from typing import Any

import pytest

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.settings import (
    augmentation,
    check_said_in_vain,
    depth_and_plan,
    resolve,
)
from sparsemlp.errors import InputError
from sparsemlp.rules import BlockMasking

KERNELS = [f"block_0/{kind}/kernel" for kind in ("XPatch", "XChannel1", "XChannel2")]


def masked_kernels(config: Config) -> set[str]:
    """The kernels of a block that the plan of a configuration names."""
    _, plan = depth_and_plan(config)
    return {kernel for kernel in KERNELS if any(fnmatch.fnmatchcase(kernel, p) for p in plan)}


@pytest.mark.parametrize(
    ("dataset", "chosen", "expected"),
    [
        ("cifar10", {}, (200, 128, 5, 10, 0.5, 0.8)),
        ("anything", {}, (200, 128, 5, 10, 0.5, 0.8)),
        ("digits", {}, (30, 32, 1, 3, 0.0, 0.0)),
        ("cifar10", {"epochs": 20}, (20, 128, 2, 2, 0.5, 0.8)),
        ("cifar10", {"epochs": 9}, (9, 128, 0, 0, 0.5, 0.8)),
        ("digits", {"epochs": 1}, (1, 32, 0, 0, 0.0, 0.0)),
        ("digits", {"flip": 0.5, "cutmix": 0.3}, (30, 32, 1, 3, 0.5, 0.3)),
        ("cifar10", {"mask_start_epoch": 0, "warmup_epochs": 0}, (200, 128, 0, 0, 0.5, 0.8)),
        ("cifar10", {"epochs": 5, "mask_start_epoch": 7}, (5, 128, 0, 7, 0.5, 0.8)),
        ("digits", {"batch_size": 1}, (30, 1, 1, 3, 0.0, 0.0)),
    ],
)
def test_open_defaults_follow_the_data_set_and_an_explicit_value_is_obeyed(
    dataset, chosen, expected
):
    settings = resolve(Config(**chosen), dataset)
    found = (
        settings.epochs,
        settings.batch_size,
        settings.warmup_epochs,
        settings.mask_start_epoch,
        settings.flip,
        settings.cutmix,
    )
    assert found == expected


def test_without_options_a_run_is_dense_and_beside_them_masks_all_layers_by_32x32():
    assert depth_and_plan(resolve(Config(), "cifar10")) == (5, {})
    settings = resolve(Config(ratio=0.8), "cifar10")
    assert masked_kernels(settings) == set(KERNELS)
    _, plan = depth_and_plan(settings)
    assert set(plan.values()) == {BlockMasking((32, 32), 0.8)}


def test_the_warm_up_starts_at_a_tenth_of_the_peak():
    assert resolve(Config(lr=0.5), "cifar10").warmup_lr == 0.05
    assert resolve(Config(lr=0.5, warmup_lr=0.0), "cifar10").warmup_lr == 0


@pytest.mark.parametrize(
    "config", [Config(), Config(ratio=0.5, epochs=50), Config(config="ResMLP2")]
)
@pytest.mark.parametrize("dataset", ["cifar10", "digits"])
def test_settings_are_complete_and_stay_what_they_are(config, dataset):
    """A resumed run resolves stored settings again, perhaps under another name of the data."""
    settings = resolve(config, dataset)
    left_open = {f.name for f in dataclasses.fields(settings) if getattr(settings, f.name) is None}
    beside_a_string = {"block", "ratio", "mask_layers", "depth"}
    rules = {"activation", "gradient", "gradient_method"}
    of_resnet9 = {"width"}
    unasked = {"ramp_epochs", "freeze_epoch", "devices", "image_size", "workers"}
    assert left_open == {"data_dir", "layer_scale"} | of_resnet9 | unasked | rules | (
        beside_a_string if config.config else {"config"}
    )
    for name in ("cifar10", "digits"):
        assert resolve(settings, name) == settings


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("XPatch", {KERNELS[0]}),
        ("XChannel", {KERNELS[1], KERNELS[2]}),
        ("XChannel2", {KERNELS[2]}),
        (" XChannel1 , XPatch ", {KERNELS[0], KERNELS[1]}),
        ("XPatch,XPatch", {KERNELS[0]}),
    ],
)
def test_mask_layers_says_which_kernels_are_masked(layers, expected):
    assert masked_kernels(Config(ratio=0.5, mask_layers=layers)) == expected


def test_a_model_string_and_single_options_mean_the_same():
    text = "ResMLP3 @ XPatch = masked 0.3 (4, 2); XChannel = masked 0.3 (4, 2);"
    both: dict[str, Any] = {"backward": "dense", "score": "l1"}
    options = Config(block="4x2", ratio=0.3, depth=3, **both)
    assert depth_and_plan(Config(config=text, **both)) == depth_and_plan(options)


@pytest.mark.parametrize("backward", ["masked", "dense", "straight_through"])
@pytest.mark.parametrize("score", ["l2", "spectral", "l1"])
def test_backward_and_score_reach_every_rule(backward, score):
    for config in (
        Config(ratio=0.5, backward=backward, score=score),
        Config(
            config="ResMLP1 @ XPatch=masked 0.5 (2,2); XChannel1=masked 0.1 (1,1);",
            backward=backward,
            score=score,
        ),
    ):
        rules = depth_and_plan(config)[1].values()
        assert rules
        assert {(rule.backward, rule.score) for rule in rules} == {(backward, score)}  # pyright: ignore[reportAttributeAccessIssue]


def test_augmentation_holds_the_chosen_numbers():
    numbers = {
        "flip": 0.1,
        "crop_padding": 3,
        "cutout": 2,
        "mixup": 0.4,
        "cutmix": 0.5,
        "mix_probability": 0.6,
        "switch_probability": 0.7,
        "label_smoothing": 0.2,
    }
    found = vars(augmentation(resolve(Config(**numbers), "digits")))
    renamed = {"mixup": "mixup_alpha", "cutmix": "cutmix_alpha"}
    assert found == {renamed.get(name, name): value for name, value in numbers.items()}


@pytest.mark.parametrize(
    "option", [{"block": "8x8"}, {"backward": "dense"}, {"score": "l1"}, {"mask_layers": "XPatch"}]
)
def test_an_option_of_a_mask_needs_one(option):
    with pytest.raises(InputError, match=r"needs a mask: give --ratio.*--ratio=0 for a dense run"):
        check_said_in_vain(Config(**option))
    check_said_in_vain(Config(**option, ratio=0.0))


def test_layers_may_be_named_for_another_rule():
    check_said_in_vain(Config(mask_layers="XPatch", activation="8x8:0.5"))


@pytest.mark.parametrize(
    "other",
    [
        {"block": "4x4"},
        {"ratio": 0.0},
        {"mask_layers": "XPatch"},
        {"depth": 5},
        {"activation": "8x8:0.7"},
        {"gradient": "2:4"},
        {"gradient_method": "random"},
    ],
)
def test_a_model_string_excludes_what_it_says_itself(other):
    (name,) = other
    expected = f"--config and --{name.replace('_', '-')} exclude each other"
    with pytest.raises(InputError, match=expected):
        resolve(Config(config="ResMLP5", **other), "cifar10")


def test_all_that_a_model_string_excludes_is_named_at_once():
    with pytest.raises(InputError, match="--config and --block, --ratio exclude each other"):
        resolve(Config(config="ResMLP5", block="4x4", ratio=0.5), "cifar10")


def test_options_and_a_model_string_say_the_same_rules():
    options = Config(
        block="4x4",
        ratio=0.5,
        mask_layers="XPatch",
        activation="8x8:0.7",
        gradient="2:4",
        gradient_method="rescaled",
    )
    rules = "masked 0.5 (4, 4) + sparse 0.7 (8, 8) + gradient 2:4 rescaled"
    string = Config(config=f"ResMLP5 @ XPatch = {rules};")
    assert depth_and_plan(options) == depth_and_plan(string)
    alone = depth_and_plan(Config(activation="mean:2x2", mask_layers="XPatch"))
    assert alone == depth_and_plan(Config(config="ResMLP5 @ XPatch = compressed (2, 2);"))


def test_a_gradient_method_without_a_gradient_rule_is_refused():
    with pytest.raises(InputError, match="--gradient-method says how --gradient=N:M is done"):
        resolve(Config(gradient_method="rescaled"), "cifar10")


@pytest.mark.parametrize("name", ["min_lr", "warmup_lr"])
@pytest.mark.parametrize("lr", [{"lr": 0.01}, {}], ids=str)
def test_a_rate_above_the_highest_is_refused(lr: dict[str, Any], name: str):
    option = name.replace("_", "-")
    said = rf"--{option}=0\.1 is above the highest rate, --lr=0\.01"
    with pytest.raises(InputError, match=said):
        check_said_in_vain(dataclasses.replace(Config(**lr), **{name: 0.1}))
    check_said_in_vain(Config(lr=1e-6))
    check_said_in_vain(Config(lr=0.01, min_lr=0.01))


@pytest.mark.parametrize(
    "chosen",
    [
        {"epochs": 9, "dataset": "cifar10"},
        {"warmup_epochs": 0},
        {"epochs": 1},
        {"epochs": 1, "dataset": "digits"},
    ],
    ids=str,
)
def test_the_rate_of_a_warm_up_that_there_is_not_is_refused(chosen: dict[str, Any]):
    with pytest.raises(InputError, match=r"--warmup-lr=0\.001 needs a warm-up"):
        check_said_in_vain(Config(warmup_lr=0.001, **chosen))
    few = {**chosen, "warmup_epochs": 1}
    check_said_in_vain(Config(warmup_lr=0.001, **few))
    check_said_in_vain(Config(warmup_lr=0.001))
    # It may come to mean digits, which have a warm-up then.
    check_said_in_vain(Config(warmup_lr=0.001, epochs=9))


def test_crops_and_flips_of_a_large_set_are_left_to_the_pipeline():
    with pytest.raises(InputError, match=r"--flip=0\.0 does not go with --dataset=imagenet2012"):
        check_said_in_vain(Config(dataset="imagenet2012", flip=0.0, ratio=0.8))


def test_digits_have_no_mirror_images():
    digits, cifar10 = (resolve(Config(model="resnet9"), name) for name in ("digits", "cifar10"))
    assert (digits.flip, digits.flip_test) == (0.0, False)
    assert (cifar10.flip, cifar10.flip_test) == (0.5, True)
    assert resolve(Config(model="resnet9", flip_test=True), "digits").flip_test
