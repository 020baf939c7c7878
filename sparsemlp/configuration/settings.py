"""The values of a run: a configuration with every open default filled in, and checked.

A stored run keeps these values, so that it can be repeated even if a default changes.
"""

import dataclasses
import math
from typing import Any

from sparsemlp.blocks import parse_block
from sparsemlp.configuration.config import Config
from sparsemlp.configuration.mask_options import (
    check_dropped_decay,
    check_mask_options,
)
from sparsemlp.configuration.option_ranges import check_depth, check_ranges
from sparsemlp.configuration.recipes import recipe
from sparsemlp.configuration.stream_options import (
    check_left_to_pipeline,
    check_stream_options,
    stream_defaults,
)
from sparsemlp.engines import check_engine
from sparsemlp.errors import InputError
from sparsemlp.model_string import parse_model
from sparsemlp.options import flag
from sparsemlp.plan import Plan, masks_any
from sparsemlp.rules import (
    BlockMasking,
    Rule,
    check_backward,
    parse_activation,
    parse_gradient,
)
from sparsemlp.selection import check_score
from sparsemlp.train.augment import Augmentation

_RULES: dict[str, Any] = {
    "block": "32x32",
    "ratio": 0.0,
    "activation": None,
    "gradient": None,
    "gradient_method": None,
}
"""Defaults of the options that say the rules."""

REPLACED = (*_RULES, "mask_layers", "depth")
"""The options that a model string replaces."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Config):
    """A configuration without open defaults, as `resolve` returns it.

    The options that a model string replaces are None beside one, and so are the architecture
    options of the other model; `layer_scale` None is the published value for the depth, `data_dir`
    None the folder of TensorFlow Datasets. The fields below have no default here; recipes have.
    """

    epochs: int = dataclasses.field()
    batch_size: int = dataclasses.field()
    mask_start_epoch: int = dataclasses.field()
    optimizer: str = dataclasses.field()
    schedule: str = dataclasses.field()
    lr: float = dataclasses.field()
    min_lr: float = dataclasses.field()
    warmup_lr: float = dataclasses.field()
    warmup_epochs: int = dataclasses.field()
    weight_decay: float = dataclasses.field()
    flip: float = dataclasses.field()
    crop_padding: int = dataclasses.field()
    cutout: int = dataclasses.field()
    mixup: float = dataclasses.field()
    cutmix: float = dataclasses.field()
    flip_test: bool = dataclasses.field()
    hold_out: float = dataclasses.field()

    def steps_per_epoch(self, n_images: int) -> int:
        """Steps in an epoch of so many training images, the partial last batch included."""
        return math.ceil(n_images / self.batch_size)


_FOR_DIGITS: dict[str, Any] = {"flip": 0.0, "flip_test": False, "cutmix": 0.0}
"""The mirror image of a digit is another shape, and a piece of one is none."""


def resolve(config: Config, dataset_name: str) -> Settings:
    """Fills in every default that depends on the data set or on another option.

    Args:
      config: what the user chose.
      dataset_name: name of the data set that was loaded.

    Returns:
      The same choice without open defaults; what a model string replaces stays None beside one.

    Raises:
      InputError: an option out of its range, or options that exclude each other.
    """
    chosen = recipe(config.model)
    digits = dataset_name == "digits"
    epochs = _epochs(config, digits)
    training = dict(chosen.training) | (_FOR_DIGITS if digits else {})
    training |= stream_defaults(config)
    changes = {name: _default(getattr(config, name), value) for name, value in training.items()}
    changes |= {
        "epochs": epochs,
        "batch_size": _default(config.batch_size, 32 if digits else chosen.batch_size),
        "warmup_lr": _default(config.warmup_lr, changes["lr"] * chosen.warmup_rate),
        "warmup_epochs": _warmup_epochs(config, digits),
        "mask_start_epoch": _default(
            config.mask_start_epoch, min(chosen.dense_epochs, epochs // 10)
        ),
        "hold_out": _default(config.hold_out, 0.1 if config.ratio_schedule == "adaptive" else 0.0),
    }
    if config.ratio_schedule == "cubic":
        masked_epochs = max(1, epochs - changes["mask_start_epoch"])
        changes["ramp_epochs"] = _default(config.ramp_epochs, max(1, masked_epochs // 2))
    changes |= {
        name: _default(getattr(config, name), value)
        for name, value in chosen.architecture.items()
        if config.config is None or name not in REPLACED
    }
    if config.config is None:
        changes |= rule_options(config)
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    settings = Settings(**(values | changes))
    check_settings(settings)
    return settings


def _epochs(config: Config, digits: bool) -> int:
    return _default(config.epochs, 30 if digits else recipe(config.model).epochs)


def _warmup_epochs(config: Config, digits: bool) -> int:
    epochs, chosen = _epochs(config, digits), recipe(config.model)
    usual = min(1, epochs // 2) if digits else min(5, epochs // chosen.warmup)
    return _default(config.warmup_epochs, usual)


def check_said_in_vain(config: Config) -> None:
    """Raises InputError for an option that would do nothing.

    These are options of a mask where no ratio was chosen, not even 0; SR-STE's decay with the
    masked backward; the rate of a warm-up where there is none; a learning rate above the highest;
    and crops and flips of images that the input pipeline crops and flips. For a new run's command
    line; a grid that gives no ratio is dense on purpose.
    """
    check_rates(config)
    check_dropped_decay(config)
    sets = (False, True) if config.dataset == "auto" else (config.dataset == "digits",)
    if config.warmup_lr is not None and not any(_warmup_epochs(config, digits) for digits in sets):
        raise InputError(
            f"--warmup-lr={config.warmup_lr:g} needs a warm-up, and there is none: give "
            "--warmup-epochs, at least 1"
        )
    check_left_to_pipeline(config)
    if config.ratio is not None or config.config is not None:
        return
    said = {"block": config.block is not None, "backward": config.backward != "masked"}
    said["score"] = config.score != "l2"
    pruned = config.activation is not None or config.gradient is not None
    said["mask_layers"] = config.mask_layers is not None and not pruned
    for name, value in said.items():
        if value:
            raise InputError(
                f"{flag(name)}={getattr(config, name)} needs a mask: give --ratio, such as "
                "--ratio=0.8, or --ratio=0 for a dense run"
            )


def check_rates(config: Config) -> None:
    """Raises InputError if another learning rate is said to be above the highest."""
    lr = _default(config.lr, recipe(config.model).training["lr"])
    for name in ("min_lr", "warmup_lr"):
        rate = getattr(config, name)
        if rate is not None and rate > lr:
            raise InputError(
                f"{flag(name)}={rate:g} is above the highest rate, --lr={lr:g}: choose a lower one"
            )


def check_settings(config: Settings) -> None:
    """Raises InputError for the first option that is out of its range."""
    depth, plan = depth_and_plan(config)
    check_engine(config.engine)
    check_ranges(config)
    check_depth(depth)
    check_stream_options(config)
    check_mask_options(config, masked=masks_any(plan))


def depth_and_plan(config: Config) -> tuple[int | None, Plan]:
    """The depth of the model and its plan, from the model string or from the single options.

    The depth is None for a model that has but one.

    Raises:
      InputError: a malformed model string or option, or both of them.
    """
    backward = check_backward(config.backward)
    check_score(config.score)
    if config.config is not None:
        given = [flag(name) for name in REPLACED if getattr(config, name) is not None]
        if given:
            raise InputError(
                f"--config and {', '.join(given)} exclude each other: the model string says it all"
            )
        return parse_model(config.config, backward=backward, score=config.score)
    chosen, patterns = rule_options(config), recipe(config.model).layer_patterns
    masking = BlockMasking(parse_block(chosen["block"]), chosen["ratio"], backward, config.score)
    rules: list[Rule] = [masking] if masking.ratio else []
    if chosen["activation"] is not None:
        rules.append(parse_activation(chosen["activation"]))
    if chosen["gradient"] is not None:
        rules.append(parse_gradient(chosen["gradient"], chosen["gradient_method"] or "magnitude"))
    elif chosen["gradient_method"] is not None:
        raise InputError("--gradient-method says how --gradient=N:M is done: give that as well")
    kinds = [kind.strip() for kind in chosen["mask_layers"].split(",")]
    for kind in kinds:
        if kind not in patterns:
            raise InputError(f"--mask-layers names {kind!r}: choose from {', '.join(patterns)}")
    kept = rules[0] if len(rules) == 1 else tuple(rules)
    plan = {patterns[kind]: kept for kind in kinds} if rules else {}
    return _default(config.depth, recipe(config.model).architecture.get("depth")), plan


def augmentation(config: Settings) -> Augmentation:
    """The augmentation of a resolved configuration."""
    return Augmentation(
        flip=config.flip,
        crop_padding=config.crop_padding,
        cutout=config.cutout,
        mixup_alpha=config.mixup,
        cutmix_alpha=config.cutmix,
        mix_probability=config.mix_probability,
        switch_probability=config.switch_probability,
        label_smoothing=config.label_smoothing,
    )


def rule_options(config: Config) -> dict[str, Any]:
    """The options that say the rules, with their defaults."""
    defaults = _RULES | {"mask_layers": recipe(config.model).mask_layers}
    return {name: _default(getattr(config, name), value) for name, value in defaults.items()}


def _default[T](value: T | None, default: T) -> T:
    return default if value is None else value
