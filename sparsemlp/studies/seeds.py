"""Runs that differ in their seed alone, as one result with a spread."""

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np

from sparsemlp.configuration.config import OF_THE_MACHINE
from sparsemlp.configuration.mask_options import NEED_A_MASK, OF_A_MASK
from sparsemlp.configuration.settings import REPLACED, depth_and_plan
from sparsemlp.plan import as_tuple
from sparsemlp.studies.study_run import StudyRun

_NOT_COMPARED = frozenset({"seed", *OF_THE_MACHINE, *REPLACED, "config", "backward", "score"})
"""Beside the seed what changes no result, and the options that the plan and the depth say."""
_OF_MASKS = frozenset({"ramp_epochs", *OF_A_MASK, *NEED_A_MASK})


@dataclasses.dataclass(frozen=True, eq=False)
class Seeds:
    """Runs of the same settings and data set, one a seed, that came equally far.

    Attributes:
      runs: at least one.
      n_behind: how many seeds more have fewer epochs on record, which no mean counts.
    """

    runs: tuple[StudyRun, ...]
    n_behind: int = 0

    @property
    def first(self) -> StudyRun:
        """The run that stands for all in what they share."""
        return self.runs[0]

    @property
    def count(self) -> str:
        """How many seeds there are, as `3 seeds` or `2 of 3 seeds`; empty of one alone."""
        n_all = len(self.runs) + self.n_behind
        if n_all == 1:
            return ""
        return f"{len(self.runs)} of {n_all} seeds" if self.n_behind else f"{n_all} seeds"

    def statistics(self, value: Callable[[StudyRun], float]) -> tuple[float, float]:
        """Mean and sample standard deviation of a value over the seeds.

        The deviation of a single run is NaN.
        """
        return statistics([value(run) for run in self.runs])

    def top1(self) -> tuple[float, float]:
        """Mean and standard deviation of the last epoch's test top-1, fractions of 1."""
        return self.statistics(lambda run: run.last("test_top1"))


def statistics(values: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; that of a single value is NaN."""
    found = np.asarray(values, float)
    if not found.size:
        return math.nan, math.nan
    spread = float(np.std(found, ddof=1)) if found.size > 1 else math.nan
    return float(np.mean(found)), spread


def by_seed(runs: Iterable[StudyRun]) -> list[Seeds]:
    """Groups runs of equal settings and data set, in the order of their first ones.

    Of a seed that was run more than once the run that came furthest counts, the first of several;
    and of the seeds of a group those that came furthest.
    """
    groups: dict[tuple[str, ...], list[StudyRun]] = {}
    for run in runs:
        if run.settings is not None:
            groups.setdefault(setting_of(run), []).append(run)
    return [_of(group) for group in groups.values()]


def setting_of(run: StudyRun) -> tuple[str, ...]:
    """What runs that differ in their seed alone have in common."""
    assert run.settings is not None
    fields = dataclasses.fields(run.settings)
    ignored = _NOT_COMPARED if run.is_masked else _NOT_COMPARED | _OF_MASKS
    compared = [field.name for field in fields if field.name not in ignored]
    depth, _ = depth_and_plan(run.settings)
    # A pattern without a rule counts beside others: what matches it best has none.
    own = () if run.is_dense else sorted(run.plan.items(), key=lambda item: item[0])
    plan = [(pattern, sorted(as_tuple(rules), key=repr)) for pattern, rules in own]
    options = (getattr(run.settings, name) for name in compared)
    return (*map(repr, (depth, plan, *options)), run.dataset)


def _of(runs: list[StudyRun]) -> Seeds:
    one_each: dict[int, StudyRun] = {}
    for run in runs:
        assert run.settings is not None
        known = one_each.setdefault(run.settings.seed, run)
        if len(run.records) > len(known.records):
            one_each[run.settings.seed] = run
    furthest = max(len(run.records) for run in one_each.values())
    there = tuple(run for run in one_each.values() if len(run.records) == furthest)
    return Seeds(there, len(one_each) - len(there))


def percent(mean: float, spread: float) -> str:
    """A fraction as `75.19%`, with a spread as `75.19 ± 0.30%`."""
    if math.isnan(mean):
        return "unknown"
    return f"{mean:.2%}" if math.isnan(spread) else f"{100 * mean:.2f} ± {100 * spread:.2f}%"
