"""Which runs can be trained together as a population, and where that is worth it."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

import jax

from sparsemlp.configuration.mask_options import NEED_A_MASK
from sparsemlp.configuration.recipes import recipe
from sparsemlp.configuration.settings import Settings, depth_and_plan
from sparsemlp.data import is_streamed
from sparsemlp.errors import require_known
from sparsemlp.options import flag
from sparsemlp.plan import as_tuple
from sparsemlp.rules import BlockMasking
from sparsemlp.selection import GRADIENT_SCORE

Choice = Literal["auto", "on", "off"]

_ENGINES = ("auto", "reference")
"""A population's masks are grids of booleans: no other engine computes with them."""


def group_runs(settings: Sequence[Settings]) -> list[list[int]]:
    """Groups runs that can be trained together: all but ratio, backward mode and seed is equal.

    Runs of model strings count by their rules: blocks and layers are equal, ratios may differ for
    each of them. Dense runs (ratio 0) group with masked ones. In a population the engine `auto`
    is `reference`, so runs of either are grouped.

    Args:
      settings: the runs.

    Returns:
      Lists of indices into `settings`, ascending, by their first one. A run that cannot be trained
      with others (`reason_against`) is a group of one.
    """
    groups: dict[Any, list[int]] = {}
    for index, each in enumerate(settings):
        key = index if reason_against(each) is not None else _common(each)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def reason_against(settings: Settings) -> str | None:
    """Why a run cannot be trained in a population, and the way out; None if it can."""
    if recipe(settings.model).family != "resmlp":
        return (
            f"--model={settings.model} cannot be trained in a population, which is one of "
            "ResMLPs; train its runs one after another (--population=off)"
        )
    if is_streamed(settings.dataset):
        return (
            f"--dataset={settings.dataset} cannot train a population: its batches are read from "
            "the disk, in memory alone every member finds its own; train these runs one after "
            "another (--population=off)"
        )
    if settings.engine not in _ENGINES:
        return (
            f"--engine={settings.engine} cannot train a population: it needs to know how many "
            "blocks are kept when it is compiled, and there that is data; choose "
            "--engine=reference or auto, or --population=off"
        )
    moving = [name for name, default in NEED_A_MASK.items() if getattr(settings, name) != default]
    moving += ["score"] if settings.score == GRADIENT_SCORE else []
    moving += ["hold_out"] if settings.hold_out else []
    if moving:
        words = ", ".join(f"{flag(name)}={getattr(settings, name)}" for name in moving)
        return (
            f"{words} cannot be trained in a population, where each layer keeps its share of the "
            "largest blocks of the moment and every image trains; train these runs one after "
            "another (--population=off)"
        )
    if settings.devices is not None and settings.devices > 1:
        return (
            f"--devices={settings.devices} cannot train a population, which is one program on one "
            "device; leave --devices out, or choose --population=off"
        )
    _, plan = depth_and_plan(settings)
    for rule in plan.values():
        if not isinstance(rule, BlockMasking):
            kinds = [type(r).__name__ for r in as_tuple(rule)]
            return (
                f"the rule {' + '.join(kinds)} cannot be trained in a population: masks alone can "
                "be data; train these runs one after another (--population=off)"
            )
    return None


def chooses_population(choice: str, platform: str | None = None) -> bool:
    """Whether runs that can be grouped are to be trained as populations.

    `auto` does so where it is expected to be faster: on a GPU, which small models leave idle for
    the most part. On a CPU they fill the cores one at a time, and what was not measured to be at
    least as fast is not chosen.

    Args:
      choice: `auto`, `on` or `off`.
      platform: JAX's name of the backend; by default the one in use.

    Raises:
      InputError: another choice.
    """
    require_known(f"--population={choice}", choice, get_args(Choice))
    platform = jax.default_backend() if platform is None else platform
    return choice == "on" or (choice == "auto" and platform == "gpu")


def _common(settings: Settings) -> Any:
    """What the runs of a population share, hashable."""
    alike = dataclasses.replace(
        settings,
        ratio=None if settings.ratio is None else 0.5,
        backward="masked",
        seed=0,
        engine="reference",
    )
    depth, plan = depth_and_plan(alike)
    rules = frozenset(
        (pattern, rule.block, rule.score)
        for pattern, rule in plan.items()
        if isinstance(rule, BlockMasking)
    )
    return dataclasses.replace(alike, config=None), settings.config is None, depth, rules
