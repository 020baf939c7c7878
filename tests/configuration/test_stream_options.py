"""Options of large image sets: what they decide by default, and what goes with which set."""

import dataclasses
from typing import Any

import pytest

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.settings import resolve
from sparsemlp.configuration.stream_options import (
    check_left_to_pipeline,
    check_stream_options,
    stream_defaults,
)
from sparsemlp.errors import InputError


def test_the_pipeline_crops_and_flips_so_the_step_does_not():
    found = resolve(Config(dataset="imagenet2012", model="resmlp_imagenet"), "imagenet2012")
    assert (found.flip, found.crop_padding, found.image_size) == (0.0, 0, 224)
    assert (found.mixup, found.cutmix) == (0.8, 1.0)


def test_the_settings_of_the_thesis_for_imagenet():
    """PAPERS.md part A: AdamW, 1e-3 and 5e-3, batch 64, 90 epochs, warm-up from 1e-5, no delay."""
    found = resolve(Config(dataset="imagenet2012", model="resmlp_imagenet"), "imagenet2012")
    assert (found.optimizer, found.lr, found.weight_decay) == ("adamw", 1e-3, 5e-3)
    assert (found.batch_size, found.epochs, found.mask_start_epoch) == (64, 90, 0)
    assert (found.warmup_epochs, found.min_lr) == (5, 1e-5)
    assert found.warmup_lr == pytest.approx(1e-5)
    assert (found.patch_size, found.dim, found.depth, found.expansion) == (14, 384, 12, 4)


def test_a_small_set_keeps_the_defaults_of_its_recipe():
    assert stream_defaults(Config(dataset="cifar10")) == {}
    found = resolve(Config(dataset="cifar10"), "cifar10")
    assert (found.flip, found.crop_padding, found.image_size) == (0.5, 4, None)


@pytest.mark.parametrize(
    ("dataset", "changes", "complaint"),
    [
        ("imagenet2012", {"flip": 0.5}, "--flip=0.5 does not go with --dataset=imagenet2012"),
        ("imagenet2012", {"crop_padding": 4}, "--crop-padding=4 does not go with"),
        ("imagenet2012", {"image_size": 0}, "--image-size=0 is too small"),
        ("imagenet2012", {"workers": -1}, "--workers=-1 is outside"),
        ("imagenet2012", {"unreadable": 1.5}, "--unreadable=1.5 is no share"),
        ("cifar10", {"image_size": 32}, "--image-size=32 is for folders"),
        ("cifar10", {"workers": 2}, "--workers=2 is for folders"),
        ("digits", {"unreadable": 0.5}, "--unreadable=0.5 is for folders"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(dataset, changes, complaint):
    with pytest.raises(InputError) as raised:
        resolve(Config(dataset=dataset, **changes), dataset)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_resolved_settings_can_be_resolved_and_checked_again():
    found = resolve(Config(dataset="imagenet2012", model="resmlp_s12"), "imagenet2012")
    names = [field.name for field in dataclasses.fields(Config)]
    again = resolve(Config(**{name: getattr(found, name) for name in names}), "imagenet2012")
    assert again == found
    check_stream_options(found)


@pytest.mark.parametrize("choice", [{"flip": 0.0}, {"crop_padding": 0}], ids=str)
def test_what_the_pipeline_does_in_its_way_cannot_be_turned_off(choice: dict[str, Any]):
    with pytest.raises(InputError, match="cropped and flipped at random as they are decoded"):
        check_left_to_pipeline(Config(dataset="imagenet2012", **choice))
    check_left_to_pipeline(Config(dataset="cifar10", **choice))
    check_left_to_pipeline(Config(dataset="imagenet2012"))
