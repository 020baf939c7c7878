"""Each recipe against what its paper says."""

import dataclasses
import fnmatch

import pytest

from sparsemlp import GradientPruning, ResNet9
from sparsemlp.configuration.config import Config
from sparsemlp.configuration.recipes import RECIPES, recipe
from sparsemlp.configuration.settings import depth_and_plan, resolve
from sparsemlp.errors import InputError


def test_resnet9_is_trained_as_in_its_paper():
    settings = resolve(Config(model="resnet9"), "cifar10")
    # PAPERS.md, part D.
    expected = {
        "epochs": 150,
        "batch_size": 512,
        "optimizer": "sgd",
        "schedule": "triangular",
        "lr": 0.5,
        "warmup_lr": pytest.approx(0.5e-4),
        "warmup_epochs": 5,
        "min_lr": 0.0,
        "weight_decay": 5e-4,
        "label_smoothing": 0.1,
        "flip": 0.5,
        "crop_padding": 2,
        "cutout": 4,
        "mixup": 0.0,
        "cutmix": 0.0,
        "flip_test": True,
        "width": 128,
    }
    assert {name: getattr(settings, name) for name in expected} == expected
    of_resmlp = set(RECIPES["resmlp"].architecture)
    assert all(getattr(settings, name) is None for name in of_resmlp)
    assert resolve(settings, "cifar10") == settings


def test_resmlp_is_trained_as_in_its_thesis():
    settings = resolve(Config(), "cifar10")
    assert (settings.optimizer, settings.schedule, settings.flip_test) == ("adam", "cosine", False)
    assert (settings.lr, settings.min_lr, settings.weight_decay) == (0.01, 1e-5, 1e-4)
    assert (settings.mixup, settings.cutmix, settings.cutout, settings.crop_padding) == (
        0.2,
        0.8,
        0,
        4,
    )


def test_a_chosen_value_is_obeyed_whatever_the_recipe_says():
    chosen = {"lr": 0.1, "optimizer": "adam", "mixup": 0.3, "flip_test": False, "cutout": 0}
    settings = resolve(Config(model="resnet9", **chosen), "cifar10")
    assert {name: getattr(settings, name) for name in chosen} == chosen
    assert settings.warmup_lr == pytest.approx(1e-5)


@pytest.mark.parametrize(("epochs", "warmup"), [(150, 5), (20, 5), (10, 2), (3, 0)])
def test_a_short_run_warms_up_for_a_quarter_of_it_at_most(epochs, warmup):
    settings = resolve(Config(model="resnet9", epochs=epochs), "cifar10")
    assert settings.warmup_epochs == warmup


def test_rules_are_for_every_convolution_of_more_than_three_channels():
    _, plan = depth_and_plan(Config(model="resnet9", gradient="2:4", gradient_method="rescaled"))
    ((pattern, rule),) = plan.items()
    assert rule == GradientPruning(2, 4, "rescaled")
    names = [f"conv_{index}/kernel" for index in range(1, 9)]
    assert [fnmatch.fnmatchcase(name, pattern) for name in names] == [False] + [True] * 7
    _, single = depth_and_plan(Config(model="resnet9", gradient="2:4", mask_layers="Conv2,Conv8"))
    assert set(single) == {"conv_2/kernel", "conv_8/kernel"}


@pytest.mark.parametrize("name", RECIPES)
def test_every_option_of_a_recipe_exists(name):
    options = {field.name for field in dataclasses.fields(Config)}
    found = recipe(name)
    assert set(found.architecture) | set(found.training) <= options
    assert set(found.mask_layers.split(",")) <= set(found.layer_patterns)


def test_an_unknown_model_is_refused():
    with pytest.raises(InputError, match="--model=vit is unknown: choose one of resmlp, resnet9"):
        recipe("vit")


def test_the_width_is_an_attribute_of_the_model():
    assert ResNet9.width == RECIPES["resnet9"].architecture["width"]
