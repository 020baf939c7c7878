"""The section `sbatch` of a grid file: what a job asks SLURM for.

Its keys are the long options of `sbatch`, as `cpus-per-task`. What the launcher needs for itself
(arrays, output files, signals, requeueing) cannot be set.
"""

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping

from sparsemlp.errors import InputError
from sparsemlp.sweeps.marked_yaml import Problems, Scalar

DEFAULT_MINUTES = 240
"""Time limit of a job that asks for none; a run that needs longer is requeued and goes on."""

ANNOUNCED_SECONDS = 120
"""How long before the end of its time a job is told: enough to compile, evaluate and save."""
SHORTEST_MINUTES = 5
"""Time limit that leaves a job some minutes between its start and that."""

_KNOWN = re.compile(
    r"account|begin|chdir|comment|constraint|cpus-per-gpu|cpus-per-task|deadline"
    r"|dependency|exclude|exclusive|export|gpu-bind|gpu-freq|gpus|gpus-per-node|gpus-per-task"
    r"|gres|hint|licenses|mail-type|mail-user|mem|mem-per-cpu|mem-per-gpu|nice|nodelist"
    r"|oversubscribe|partition|prefer|priority|qos|reservation|threads-per-core|time|time-min"
    r"|tmp|wckey"
)
_TAKEN = re.compile(
    r"array|error|input|job-name|no-requeue|nodes|ntasks|ntasks-per-node|open-mode|output"
    r"|requeue|signal|wrap"
)
_ALONE = ("exclusive", "oversubscribe")
"""Options that may be given without a value."""
_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+))?(?::(?P<ds>\d+))?"
    r"|(?P<h>\d+):(?P<hm>\d+):(?P<hs>\d+)|(?P<m>\d+)(?::(?P<ms>\d+))?)"
)


@dataclasses.dataclass(frozen=True)
class SlurmOptions:
    """What each job asks for.

    Attributes:
      minutes: its time limit.
      cpus_per_task: its processors; None for SLURM's default.
      more: every other option of `sbatch` by its long name; True for one without a value.
    """

    minutes: int = DEFAULT_MINUTES
    cpus_per_task: int | None = None
    more: Mapping[str, str | bool] = dataclasses.field(default_factory=dict)


def parse_sbatch(section: Mapping[str, Scalar], problems: Problems) -> SlurmOptions:
    """Reads the section; unknown options and values that SLURM could not read are problems."""
    minutes, cpus_per_task = DEFAULT_MINUTES, None
    more: dict[str, str | bool] = {}
    seen: dict[str, str] = {}
    for key, value in section.items():
        option, where = key.replace("_", "-"), f"sbatch.{key}"
        try:
            _check_option(option, where, value.text)
            if option in seen:
                raise InputError(f"{where} and {seen[option]} are the same option: keep one")
            seen[option] = where
            text = value.text or ""
            if option == "time":
                minutes = _long_enough(parse_time(text), text)
            elif option == "cpus-per-task":
                cpus_per_task = _positive(where, text)
            else:
                alone = ("true", "yes", "on") if option in _ALONE else ("true",)
                more[option] = text.lower() in alone or text
        except InputError as error:
            problems.add(value.line, str(error))
    return SlurmOptions(minutes, cpus_per_task, more)


def parse_time(text: str) -> int:
    """Minutes of a time limit in one of SLURM's forms, rounded up.

    The forms are M, M:S, H:M:S, D-H, D-H:M and D-H:M:S.

    Raises:
      InputError: the text is none of them, or no time at all.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"sbatch.time is {text!r}: write MINUTES, H:M:S, D-H or D-H:M:S, such as 4:00:00"
        )
    part = {name: int(number or 0) for name, number in match.groupdict().items()}
    seconds = 60 * (60 * (24 * part["days"] + part["dh"] + part["h"]) + part["dm"] + part["hm"])
    seconds += 60 * part["m"] + part["ds"] + part["hs"] + part["ms"]
    if not seconds:
        raise InputError(f"sbatch.time is {text!r}: a job needs some time")
    return math.ceil(seconds / 60)


def _long_enough(minutes: int, text: str) -> int:
    if minutes < SHORTEST_MINUTES:
        raise InputError(
            f"sbatch.time is {text!r}: a job is told to save {ANNOUNCED_SECONDS} s before its end "
            f"and takes a while to begin, so give it {SHORTEST_MINUTES} minutes or more"
        )
    return minutes


def _check_option(option: str, where: str, text: str | None) -> None:
    if _TAKEN.fullmatch(option):
        raise InputError(
            f"{where} is set by the launcher: leave it out"
            + (" (meta.prefix names the jobs)" if option == "job-name" else "")
        )
    if option == "clusters":
        raise InputError(
            f"{where} cannot be set here, as the queue would not be looked at there: leave it out "
            "and export SLURM_CLUSTERS, which sbatch and squeue obey alike"
        )
    if not _KNOWN.fullmatch(option):
        near = difflib.get_close_matches(option, _KNOWN.pattern.split("|"), n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else "a job here can use no such option"
        raise InputError(f"unknown key {where}: {hint}")
    if text is None or not text.strip():
        raise InputError(f"{where} has no value: for an option without one write true")
    if option in _ALONE and text.lower() in ("false", "no", "off"):
        raise InputError(f"{where} is {text!r}: leave out what a job should not ask for")
    if not text.isprintable():
        raise InputError(f"{where} is {text!r}: a line break or control character is not allowed")


def _positive(where: str, text: str) -> int:
    if not re.fullmatch(r"\d+", text.strip()) or not int(text):
        raise InputError(f"{where} is {text!r}, not a positive integer")
    return int(text)
