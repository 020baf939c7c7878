"""The models that the training program knows, each with the training that was published for it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sparsemlp.errors import InputError
from sparsemlp.model_string import LAYER_PATTERNS


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A model and the defaults of the options that depend on it.

    Attributes:
      title: the model's name in texts.
      layer_patterns: plan pattern of each layer kind that `--mask-layers` may name.
      mask_layers: the kinds that rules apply to.
      architecture: options that only this model has, with their defaults.
      training: other options, with their defaults.
      epochs: epochs to train.
      batch_size: images in a step.
      warmup: what the epochs are divided by for the longest warm-up, which is 5 epochs.
      warmup_rate: learning rate of the first step over the peak's.
    """

    title: str
    layer_patterns: Mapping[str, str]
    mask_layers: str
    architecture: Mapping[str, Any]
    training: Mapping[str, Any]
    epochs: int
    batch_size: int
    warmup: int
    warmup_rate: float


RECIPES = {
    "resmlp": Recipe(
        title="ResMLP",
        layer_patterns=LAYER_PATTERNS,
        mask_layers="XPatch,XChannel",
        architecture={
            "patch_size": 4,
            "dim": 64,
            "depth": 5,
            "expansion": 4,
            "layer_scale": None,
            "drop_path": 0.0,
        },
        training={
            "optimizer": "adam",
            "schedule": "cosine",
            "lr": 0.01,
            "min_lr": 1e-5,
            "weight_decay": 1e-4,
            "flip": 0.5,
            "crop_padding": 4,
            "cutout": 0,
            "mixup": 0.2,
            "cutmix": 0.8,
            "flip_test": False,
        },
        epochs=200,
        batch_size=128,
        warmup=10,
        warmup_rate=0.1,
    ),
    "resnet9": Recipe(
        title="ResNet-9",
        layer_patterns={"Conv": "conv_[2-8]/kernel"}
        | {f"Conv{index}": f"conv_{index}/kernel" for index in range(2, 9)},
        mask_layers="Conv",
        architecture={"width": 128},
        training={
            "optimizer": "sgd",
            "schedule": "triangular",
            "lr": 0.5,
            "min_lr": 0.0,
            "weight_decay": 5e-4,
            "flip": 0.5,
            "crop_padding": 2,
            "cutout": 4,
            "mixup": 0.0,
            "cutmix": 0.0,
            "flip_test": True,
        },
        epochs=150,
        batch_size=512,
        warmup=4,
        warmup_rate=1e-4,
    ),
}
"""ResMLP after Bespalov 2025, ResNet-9 after McDanel, Dinh and Magallanes (SDGP)."""


def recipe(model: str) -> Recipe:
    """The recipe of a model.

    Raises:
      InputError: there is no such model.
    """
    if model not in RECIPES:
        raise InputError(f"--model={model} is unknown: choose one of {', '.join(RECIPES)}")
    return RECIPES[model]
