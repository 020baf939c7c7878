"""One run of a study: what was trained, how far it came, and what came out."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparsemlp.blocks import format_block
from sparsemlp.configuration.descriptions import describe_masking
from sparsemlp.configuration.recipes import recipe
from sparsemlp.configuration.settings import Settings, depth_and_plan
from sparsemlp.data import OUTLINES
from sparsemlp.files import Record, read_record
from sparsemlp.plan import Plan, all_rules, as_tuple, masks_any
from sparsemlp.rules import BlockMasking
from sparsemlp.runs.run_folder import RunFolder

Status = Literal["finished", "unfinished", "failed", "missing", "unreadable"]

_TIMED_EPOCHS = 5
"""The last epochs whose median is the time of a step: compilation lies before them."""


@dataclasses.dataclass(frozen=True, eq=False)
class StudyRun:
    """A run of a study.

    Attributes:
      name: path below the study, `/` between its parts.
      status: `finished` has a summary; `missing` is known from the grid alone; `unreadable` has
        files that this version cannot read.
      reason: why it is not finished, in a line; empty if it is.
      settings: its configuration without open defaults; None if that cannot be read.
      records: a record an epoch, each with `epoch` and `test_top1`.
      summary: of a finished run, else empty.
      environment: what `environment.json` says, empty if it is lost.
      folder: its files; None for a missing run.
    """

    name: str
    status: Status
    reason: str = ""
    settings: Settings | None = None
    records: tuple[Record, ...] = ()
    summary: Record = dataclasses.field(default_factory=dict)
    environment: Record = dataclasses.field(default_factory=dict)
    folder: RunFolder | None = None

    def column(self, key: str) -> np.ndarray:
        """A key of all records as floats `[epochs]`, NaN where a record has no such number."""
        return np.array([as_float(record.get(key)) for record in self.records])

    def last(self, key: str) -> float:
        """A key of the last record, NaN if there is none."""
        return as_float(self.records[-1].get(key)) if self.records else math.nan

    @functools.cached_property
    def plan(self) -> Plan:
        """Which parameter has which rules, masks left out that drop nothing or never begin."""
        if self.settings is None:
            return {}
        never = self.settings.mask_start_epoch >= self.settings.epochs
        return {
            pattern: tuple(
                rule
                for rule in as_tuple(rules)
                if not (isinstance(rule, BlockMasking) and (never or rule.ratio == 0))
            )
            for pattern, rules in depth_and_plan(self.settings)[1].items()
        }

    @functools.cached_property
    def masking(self) -> BlockMasking | None:
        """The masking rule, if all masked layers have the same one."""
        rules = {(rule.block, rule.ratio): rule for rule in self._masks}
        return next(iter(rules.values())) if len(rules) == 1 else None

    @property
    def is_masked(self) -> bool:
        """Whether any layer has a mask; they may differ, and then `masking` is None."""
        return bool(self._masks)

    @property
    def backward(self) -> str | None:
        """The backward pass of the masked layers; None without one, or where they differ."""
        found = {rule.backward for rule in self._masks}
        return found.pop() if len(found) == 1 else None

    @functools.cached_property
    def _masks(self) -> list[BlockMasking]:
        return [rule for rule in all_rules(self.plan) if isinstance(rule, BlockMasking)]

    @functools.cached_property
    def layer_ratios(self) -> dict[str, float]:
        """With a global budget the ratio of each masked kernel by path; empty until it is known."""
        found = None if self.folder is None else read_object(self.folder.budget)
        return {} if found is None else {path: as_float(ratio) for path, ratio in found.items()}

    @property
    def ratio(self) -> float | None:
        """The share of the blocks that are dropped; None where layers have different ones."""
        return None if self.settings is None else _only({rule.ratio for rule in self._masks}, 0.0)

    @property
    def is_dense(self) -> bool:
        """Whether no rule of any kind applies: the model that all others are compared with."""
        return self.settings is not None and not all_rules(self.plan)

    @property
    def block(self) -> str | None:
        """The block, `ROWSxCOLS`, where `masking` is one."""
        return None if self.masking is None else format_block(self.masking.block)

    @property
    def model(self) -> str:
        """The name of the model."""
        return "" if self.settings is None else recipe(self.settings.model).title

    @property
    def label(self) -> str:
        """The masking in a few words; also if it never begins, which is said then."""
        if self.settings is None:
            return self.name
        asked = masks_any(depth_and_plan(self.settings)[1])
        never = ", never begun" if asked and not self.is_masked else ""
        return describe_masking(self.settings) + never

    @property
    def dataset(self) -> str:
        """What it was trained on, as the run itself says it."""
        stated = self.records[-1].get("dataset") if self.records else None
        stated = stated or self.environment.get("dataset")
        return str(stated or (self.settings.dataset if self.settings is not None else ""))

    @property
    def device(self) -> str:
        """What computed it last, in a few words; empty if that is not known."""
        return describe_device(self.environment)

    @property
    def n_together(self) -> int:
        """How many runs were trained in one program at last, this one among them."""
        return _n_together(self.environment)

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps of an epoch, as the records count them."""
        if self.records and self.records[-1].get("step") and self.records[-1]["epoch"]:
            return round(self.records[-1]["step"] / self.records[-1]["epoch"])
        n_images = self.images_per_epoch
        if n_images is None or self.settings is None:
            return None
        return self.settings.steps_per_epoch(n_images)

    @property
    def images_per_epoch(self) -> int | None:
        """Training images, without those held out; None for a data set of unknown size."""
        if self.settings is None or self.settings.dataset not in OUTLINES:
            return None
        n_images = OUTLINES[self.settings.dataset].n_train
        return n_images - round(n_images * self.settings.hold_out)

    @property
    def step_ms(self) -> float:
        """Milliseconds of a training step, the median of the last epochs; NaN if not recorded.

        Of runs that were trained together, for a while at least, there is one time for all, which
        says nothing of one. Whether they were stands in the environment, and is unknown without.
        """
        earlier = self.environment.get("earlier")
        every = [self.environment, *(earlier if isinstance(earlier, list) else [])]
        if not self.environment or any(_n_together(each) > 1 for each in every):
            return math.nan
        steps = np.diff(self.column("step"), prepend=0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            taken = (1000 * self.column("seconds") / steps)[-_TIMED_EPOCHS:]
        taken = taken[np.isfinite(taken)]
        return float(np.median(taken)) if taken.size else math.nan


def describe_device(environment: Record) -> str:
    """What an environment says of the device, in a few words; empty if it says nothing."""
    if not environment:
        return ""
    n_together = _n_together(environment)
    together = f", {n_together} runs at once" if n_together > 1 else ""
    if environment.get("backend") == "cpu":
        cores, processor = (environment.get(key) for key in ("cores", "processor"))
        return f"{cores} cores of {processor}{together}"
    n_devices = environment.get("devices", 1)
    device = environment.get("device", "an unknown device")
    return (f"{n_devices} x {device}" if n_devices != 1 else str(device)) + together


def _n_together(environment: Any) -> int:
    found = environment.get("population") if isinstance(environment, dict) else None
    members = found.get("members") if isinstance(found, dict) else None
    return members if isinstance(members, int) else 1


def _only(values: set[float], default: float) -> float | None:
    return default if not values else next(iter(values)) if len(values) == 1 else None


def as_float(value: Any) -> float:
    """A JSON number as a float; anything else is NaN."""
    return float(value) if isinstance(value, int | float) else math.nan


def read_object(path: Path) -> Record | None:
    """A JSON object; empty if the file is damaged, None if there is none."""
    return (read_record(path) or {}) if path.is_file() else None
