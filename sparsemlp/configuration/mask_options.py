"""The options of masks that move, read from a configuration."""

from typing import Any, cast

from sparsemlp.budgets import check_budget
from sparsemlp.configuration.config import Config
from sparsemlp.dynamics import Dynamics
from sparsemlp.errors import InputError
from sparsemlp.options import flag
from sparsemlp.schedule import MaskSchedule
from sparsemlp.selection import GRADIENT_SCORE

NEED_A_MASK: dict[str, Any] = {
    name: getattr(Config, name)
    for name in (
        "score_decay",
        "hysteresis",
        "budget",
        "ratio_schedule",
        "freeze_epoch",
        "dropped_decay",
        "moments",
    )
}
"""Options that do nothing without a mask, with their defaults."""


OF_A_MASK = frozenset({"block", "backward", "mask_layers", "mask_start_epoch", "score"})
"""Options, beside those, that change nothing of a dense run."""


def mask_schedule(config: Config) -> MaskSchedule:
    """When a resolved configuration masks, and how much."""
    return MaskSchedule(
        start=config.mask_start_epoch or 0,
        kind=cast(Any, config.ratio_schedule),
        ramp=config.ramp_epochs or 0,
        freeze=config.freeze_epoch,
    )


def dynamics(config: Config) -> Dynamics:
    """How the masks of a configuration move."""
    return Dynamics(
        score_decay=config.score_decay,
        hysteresis=config.hysteresis,
        dropped_decay=config.dropped_decay,
        moments=cast(Any, config.moments),
        freezes=config.freeze_epoch is not None,
    )


def check_mask_options(config: Config, *, masked: bool) -> None:
    """Checks the options of moving masks in a resolved configuration.

    Args:
      config: the configuration.
      masked: whether it masks anything.

    Raises:
      InputError: an option is out of its range, does nothing, or needs another one.
    """
    for name, default in NEED_A_MASK.items():
        value = getattr(config, name)
        if value != default and not masked:
            raise InputError(
                f"{flag(name)}={value} needs a mask: give --ratio, or a mask in --config"
            )
    dynamics(config)
    schedule = mask_schedule(config)
    check_budget(config.budget)
    freeze, ramp, hold_out = config.freeze_epoch, config.ramp_epochs, config.hold_out or 0.0
    if freeze is not None and freeze <= schedule.start:
        raise InputError(
            f"--freeze-epoch={freeze} is not after the first masked epoch, {schedule.start} (both "
            "counted from 0): there would be no mask to keep; choose a later one"
        )
    if ramp is not None and schedule.kind != "cubic":
        raise InputError(f"--ramp-epochs={ramp} needs --ratio-schedule=cubic")
    if schedule.kind == "adaptive" and not hold_out:
        raise InputError(
            "--ratio-schedule=adaptive follows the loss of held-out images: give --hold-out"
        )
    if config.score == GRADIENT_SCORE and config.backward == "masked":
        raise InputError(
            "--score=gradient ranks by weight times gradient, and the masked backward gives "
            "dropped blocks no gradient, so none could return: choose --backward=straight_through "
            "or dense"
        )
    if config.score == GRADIENT_SCORE and config.budget == "global":
        raise InputError(
            "--budget=global ranks the blocks of all layers when masking starts, and "
            "--score=gradient knows them only within a step: choose --budget=erk, or another score"
        )


def check_dropped_decay(config: Config) -> None:
    """Raises InputError if SR-STE's decay is said where dropped weights do not learn on."""
    if config.dropped_decay and config.backward == "masked":
        raise InputError(
            f"--dropped-decay={config.dropped_decay:g} is for dropped weights that learn on "
            "(SR-STE), and the masked backward gives them no gradient: choose "
            "--backward=straight_through or dense"
        )


def in_words(config: Config) -> list[str]:
    """The options of moving masks that are not at their defaults, as `global budget`."""
    words = [] if config.score == "l2" else [f"{config.score} score"]
    for name, default in NEED_A_MASK.items():
        value = getattr(config, name)
        if value != default:
            option = name.replace("_", " ")
            is_word = isinstance(value, str)
            words.append(f"{value} {option.split()[0]}" if is_word else f"{option} {value:g}")
    return words
