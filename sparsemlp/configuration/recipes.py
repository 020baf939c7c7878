"""The models that the training program knows, each with the training that was published for it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sparsemlp.errors import require_known
from sparsemlp.model_string import LAYER_PATTERNS
from sparsemlp.presets import (
    resmlp_b24,
    resmlp_cifar10,
    resmlp_imagenet,
    resmlp_s12,
    resmlp_s24,
    resmlp_s36,
)
from sparsemlp.resmlp import ResMLP


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A model and the defaults of the options that depend on it.

    Attributes:
      title: the model's name in texts.
      family: `resmlp` or `resnet9`, the class of the model.
      layer_patterns: plan pattern of each layer kind that `--mask-layers` may name.
      mask_layers: the kinds that rules apply to.
      architecture: options that only this model has, with their defaults.
      training: other options, with their defaults.
      epochs: epochs to train.
      batch_size: images in a step.
      warmup: what the epochs are divided by for the longest warm-up, which is 5 epochs.
      warmup_rate: learning rate of the first step over the peak's.
      dense_epochs: epochs before masking starts, at most a tenth of all.
    """

    title: str
    family: str
    layer_patterns: Mapping[str, str]
    mask_layers: str
    architecture: Mapping[str, Any]
    training: Mapping[str, Any]
    epochs: int
    batch_size: int
    warmup: int
    warmup_rate: float
    dense_epochs: int = 10


_FOR_CIFAR10: dict[str, Any] = {
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
}
_FOR_IMAGENET = _FOR_CIFAR10 | {
    "optimizer": "adamw",
    "lr": 1e-3,
    "weight_decay": 5e-3,
    "mixup": 0.8,
    "cutmix": 1.0,
}


def _architecture(model: ResMLP) -> dict[str, Any]:
    """The sizes of a ResMLP as options."""
    return {
        "patch_size": model.patch_size,
        "dim": model.dim,
        "depth": model.depth,
        "expansion": model.expansion,
        "layer_scale": None,
        "drop_path": 0.0,
    }


def _imagenet(title: str, model: ResMLP) -> Recipe:
    """A published ResMLP with the thesis' training on ImageNet, masked from the first epoch on."""
    return Recipe(
        title=title,
        family="resmlp",
        layer_patterns=LAYER_PATTERNS,
        mask_layers="XPatch,XChannel",
        architecture=_architecture(model),
        training=_FOR_IMAGENET,
        epochs=90,
        batch_size=64,
        warmup=10,
        warmup_rate=0.01,
        dense_epochs=0,
    )


RECIPES = {
    "resmlp": Recipe(
        title="ResMLP",
        family="resmlp",
        layer_patterns=LAYER_PATTERNS,
        mask_layers="XPatch,XChannel",
        architecture=_architecture(resmlp_cifar10()),
        training=_FOR_CIFAR10,
        epochs=200,
        batch_size=128,
        warmup=10,
        warmup_rate=0.1,
    ),
    "resnet9": Recipe(
        title="ResNet-9",
        family="resnet9",
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
    "resmlp_imagenet": _imagenet("ResMLP for ImageNet", resmlp_imagenet()),
    "resmlp_s12": _imagenet("ResMLP-S12", resmlp_s12()),
    "resmlp_s24": _imagenet("ResMLP-S24", resmlp_s24()),
    "resmlp_s36": _imagenet("ResMLP-S36", resmlp_s36()),
    "resmlp_b24": _imagenet("ResMLP-B24/8", resmlp_b24()),
}
"""ResMLP and its ImageNet variant after Bespalov 2025, ResNet-9 after McDanel, Dinh and Magallanes
(SDGP); the sizes of Touvron et al. (arXiv 2105.03404) with Bespalov's training, not their own."""


def recipe(model: str) -> Recipe:
    """The recipe of a model.

    Raises:
      InputError: there is no such model.
    """
    return RECIPES[require_known(f"--model={model}", model, RECIPES)]
