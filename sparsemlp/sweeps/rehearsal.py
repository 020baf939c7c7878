"""What a configuration comes to, found out without training and with hardly any memory."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sparsemlp.budgets import check_budget, share_out
from sparsemlp.configuration.config import CHANGEABLE, Config
from sparsemlp.configuration.mask_options import NEED_A_MASK, check_dropped_decay, mask_schedule
from sparsemlp.configuration.program import build_program
from sparsemlp.configuration.recipes import recipe
from sparsemlp.configuration.settings import (
    REPLACED,
    Settings,
    check_rates,
    depth_and_plan,
    resolve,
)
from sparsemlp.configuration.stream_options import check_left_to_pipeline
from sparsemlp.data import OUTLINES, ImageDataset, LabelledImages, is_streamed, load_images
from sparsemlp.data.dataset import evenly_spaced
from sparsemlp.data.imagenet import hold_out_images
from sparsemlp.data.load import checked_folder
from sparsemlp.errors import InputError
from sparsemlp.paths import is_npz
from sparsemlp.plan import as_tuple, masks_alone, masks_any
from sparsemlp.planned_kernels import check_plan
from sparsemlp.rules import BlockMasking
from sparsemlp.schedule import LEVELS
from sparsemlp.train.train_state import initial_state

_RULE_OPTIONS = (*REPLACED, "config", "backward", "score")
"""The options that a plan stands for."""


@functools.lru_cache(maxsize=16)
def rehearse(config: Config, *, is_remote: bool = False) -> Settings:
    """Checks a configuration as far as it can be without training.

    Args:
      config: the configuration.
      is_remote: whether another machine trains it, whose engines and folders are not known here.

    Returns:
      Its settings.

    Raises:
      InputError: a run of it would be refused, or never mask though it is told to; the first
        reason found.
    """
    if config.data_dir is not None and not is_remote:
        checked_folder(config.data_dir)
    data = outline_of(config)
    check_left_to_pipeline(config)
    check_rates(config)
    check_dropped_decay(config)
    settings = resolve(config, data.name if config.dataset == "auto" else config.dataset)
    _, plan = depth_and_plan(settings)
    if settings.mask_start_epoch >= settings.epochs and masks_any(plan):
        raise InputError(
            f"--mask-start-epoch={settings.mask_start_epoch} is never reached in {settings.epochs} "
            "epochs: the run would be dense and called a masked one; choose an earlier epoch"
        )
    schedule = mask_schedule(settings)
    reached = schedule.phase(settings.epochs - 1, ()).level
    if schedule.kind == "cubic" and reached < LEVELS and masks_any(plan):
        frozen = "" if settings.freeze_epoch is None else " or before --freeze-epoch"
        raise InputError(
            f"--ramp-epochs={settings.ramp_epochs} does not reach the ratio in {settings.epochs} "
            f"epochs{frozen}, {reached}/{LEVELS} of it at most: the run would be called one of the "
            "whole ratio; choose a shorter ramp"
        )
    parameters = _parameters(_without_rules(settings))
    check_plan(parameters, plan)
    share_out(parameters, plan, check_budget(settings.budget))
    if not masks_alone(plan):
        reference = dataclasses.replace(settings, engine="reference", seed=0, lr=0.0)
        _check_program(reference)
    if settings.engine not in ("auto", "reference") and not is_remote:
        _check_program(dataclasses.replace(settings, seed=0, lr=0.0))
    return settings


def training_of(config: Config, *, is_remote: bool = False) -> tuple[Any, ...]:
    """What tells a training from another one: dense runs are the same for every block.

    Args:
      config: the configuration.
      is_remote: as for `rehearse`.

    Raises:
      InputError: a run of it would be refused.
    """
    settings = rehearse(config, is_remote=is_remote)
    depth, plan = depth_and_plan(settings)
    active = {pattern: _active(rules) for pattern, rules in plan.items()}
    active = {pattern: rules for pattern, rules in active.items() if rules}
    left_out = {*_RULE_OPTIONS, *CHANGEABLE}
    if not active:
        left_out.add("mask_start_epoch")
    if settings.freeze_epoch is not None and settings.freeze_epoch >= settings.epochs:
        left_out.add("freeze_epoch")
    rest = [
        (field.name, getattr(settings, field.name))
        for field in dataclasses.fields(Config)
        if field.name not in left_out
    ]
    return depth, tuple(sorted(active.items())), tuple(rest)


def outline_of(config: Config) -> LabelledImages:
    """The data set of a configuration; of one that is neither file nor folder only the shapes.

    Raises:
      InputError: there is no such data set.
    """
    return _outline(config.dataset, config.data_dir, config.image_size)


def _without_rules(settings: Settings) -> Settings:
    """The same architecture, dense, with all else that shapes of parameters do not depend on."""
    depth, _ = depth_and_plan(settings)
    plain: dict[str, Any] = dict.fromkeys(_RULE_OPTIONS) | {"backward": "masked", "score": "l2"}
    plain |= {**NEED_A_MASK, "ramp_epochs": None}
    plain |= {"depth": depth if recipe(settings.model).family == "resmlp" else None}
    plain |= {"seed": 0, "lr": 0.0, "engine": "reference"}
    return resolve(_as_config(dataclasses.replace(settings, **plain)), settings.dataset)


def _as_config(settings: Settings) -> Config:
    return Config(**{f.name: getattr(settings, f.name) for f in dataclasses.fields(Config)})


@functools.lru_cache(maxsize=64)
def _parameters(settings: Settings) -> Any:
    """Shapes of the parameters of a model."""
    program = build_program(settings, _training_images(settings))
    return jax.eval_shape(lambda: initial_state(program)).params


@functools.lru_cache(maxsize=1024)
def _check_program(settings: Settings) -> None:
    build_program(settings, _training_images(settings))


def _training_images(settings: Settings) -> LabelledImages:
    """The data set of a configuration without what it holds out, or as many of its images.

    Raises:
      InputError: there is no such data set, or it cannot be shared out so.
    """
    data = outline_of(settings)
    if not settings.hold_out:
        return data
    if not isinstance(data, ImageDataset):
        return hold_out_images(data, settings.hold_out)[0]
    n_left = np.count_nonzero(~evenly_spaced(data.n_train, settings.hold_out))
    return dataclasses.replace(
        data, train_images=data.train_images[:n_left], train_labels=data.train_labels[:n_left]
    )


@functools.lru_cache(maxsize=8)
def _outline(dataset: str, data_dir: Path | None, image_size: int | None) -> LabelledImages:
    """The data set if it is a file or a folder, else one of its shape that takes no memory."""
    if is_npz(dataset) or is_streamed(dataset):
        return load_images(dataset, data_dir, image_size=image_size)
    images = OUTLINES["cifar10" if dataset == "auto" else dataset]
    size = images.side, images.side, images.channels

    def zeros(*shape: int) -> Any:
        return np.broadcast_to(np.uint8(0), shape)

    return ImageDataset(
        name=dataset,
        source=dataset,
        train_images=zeros(images.n_train, *size),
        train_labels=np.zeros(images.n_train, np.int32),
        test_images=zeros(images.n_test, *size),
        test_labels=np.zeros(images.n_test, np.int32),
        n_classes=images.n_classes,
        mean=(0.0,) * images.channels,
        std=(1.0,) * images.channels,
    )


def _active(rules: Any) -> tuple[Any, ...]:
    return tuple(
        rule for rule in as_tuple(rules) if not (isinstance(rule, BlockMasking) and not rule.ratio)
    )
