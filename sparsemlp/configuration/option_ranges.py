"""The range of every option of a run, and which options belong to another model."""

import math
from typing import Literal, get_args

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.recipes import RECIPES, recipe
from sparsemlp.errors import InputError, require_known
from sparsemlp.options import flag

Precision = Literal["float32", "bfloat16"]
Optimizer = Literal["adam", "adamw", "sgd"]
Schedule = Literal["cosine", "triangular"]

_LEAST = {
    "epochs": 1,
    "batch_size": 1,
    "accumulate": 1,
    "mask_start_epoch": 0,
    "warmup_epochs": 0,
    "patch_size": 1,
    "dim": 1,
    "depth": 1,
    "expansion": 1,
    "width": 1,
    "image_size": 1,
    "ramp_epochs": 1,
    "crop_padding": 0,
    "cutout": 0,
}
"""The least value of integers."""

_MOST_BLOCKS = 1000
"""Residual blocks of a ResMLP, each of which is traced and compiled on its own."""

_NOT_NEGATIVE = ("lr", "min_lr", "warmup_lr", "weight_decay", "checkpoint_every", "mixup", "cutmix")
_PROBABILITIES = ("flip", "mix_probability", "switch_probability")
_SHARES = {
    "drop_path": "",
    "ema": ": it is the share of the average that stays, 0 for no average",
    "hold_out": "",
    "label_smoothing": ": what is left is the label's own share",
}
"""Options in [0, 1), and what else is to be said of them."""


def check_ranges(config: Config) -> None:
    """Raises InputError for the first option of a resolved configuration that is out of its range.

    Rules, masks and engine are checked where they are read.
    """
    _check_names(config)
    for name, least in _LEAST.items():
        value = getattr(config, name)
        if value is not None and value < least:
            raise InputError(f"{flag(name)}={value} is too small: it must be at least {least}")
    for name in _PROBABILITIES:
        value = getattr(config, name)
        if value is not None and not 0 <= value <= 1:
            raise InputError(f"{flag(name)}={value} is no probability: choose it in [0, 1]")
    for name in _NOT_NEGATIVE:
        value = getattr(config, name)
        if value is not None and not 0 <= value < math.inf:
            raise InputError(f"{flag(name)}={value} must be a finite number, at least 0")
    if config.layer_scale is not None and not math.isfinite(config.layer_scale):
        raise InputError(f"--layer-scale={config.layer_scale} must be a finite number")
    warmup, epochs = config.warmup_epochs or 0, config.epochs or 0
    if warmup > epochs:
        raise InputError(f"--warmup-epochs={warmup} is longer than --epochs={epochs}")
    if not 0 <= config.seed < 2**32:
        raise InputError(f"--seed={config.seed} is outside [0, 2**32)")
    for name, meaning in _SHARES.items():
        value = getattr(config, name)
        if value is not None and not 0 <= value < 1:
            raise InputError(f"{flag(name)}={value} is outside [0, 1){meaning}")
    if recipe(config.model).family == "resnet9" and config.accumulate > 1:
        raise InputError(
            f"--accumulate={config.accumulate}: resnet9 normalises by the statistics of the images "
            "that are computed at once, so that its numbers would change: leave --accumulate out"
        )


def check_depth(depth: int | None) -> None:
    """Raises InputError for more residual blocks than would ever be compiled."""
    if depth is not None and depth > _MOST_BLOCKS:
        raise InputError(
            f"a depth of {depth} is too large: each block is traced and compiled on its own, so "
            f"that {_MOST_BLOCKS} are the most"
        )


def _check_names(config: Config) -> None:
    for name, kind in (("precision", Precision), ("optimizer", Optimizer), ("schedule", Schedule)):
        value = getattr(config, name)
        require_known(f"{flag(name)}={value}", value, get_args(kind))
    own = recipe(config.model).architecture
    for model, other in RECIPES.items():
        for name in (*other.architecture, *(("config",) if model == "resmlp" else ())):
            foreign = other.family != recipe(config.model).family and name not in own
            if foreign and getattr(config, name) is not None:
                raise InputError(f"{flag(name)} is an option of --model={model}: leave it out")
