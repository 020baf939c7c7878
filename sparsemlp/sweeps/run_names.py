"""Names of the runs of a sweep: readable, and safe as file names and in any shell."""

import json
import re
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from sparsemlp.configuration.config import Config
from sparsemlp.configuration.config_file import to_json
from sparsemlp.configuration.settings import Settings, depth_and_plan
from sparsemlp.paths import is_npz

_LONGEST = 100
_COVERED = {
    "model",
    "block",
    "ratio",
    "backward",
    "seed",
    "config",
    "activation",
    "gradient",
    "gradient_method",
}
"""Options that every name tells of."""


def run_name(settings: Settings, swept: Sequence[str]) -> str:
    """The name of a run, as `32x32-0.8-masked-seed0`; `dense-seed0` without any rule.

    Args:
      settings: the run.
      swept: the options that its grid lists; those that a name does not tell of anyway follow
        with their values.

    Returns:
      At most 100 characters, all of them letters, digits, `.`, `_`, `+` and `-`.
    """
    _, plan = depth_and_plan(settings)
    words = [] if settings.model == "resmlp" else [settings.model]
    if settings.config is not None:
        words += [settings.config, settings.backward]
    elif settings.ratio:
        words += [str(settings.block), f"{settings.ratio:g}", settings.backward]
    elif not plan:
        words.append("dense")
    if settings.activation is not None:
        words += ["activation", settings.activation]
    if settings.gradient is not None:
        words += ["gradient", settings.gradient, settings.gradient_method or "magnitude"]
    for option in swept:
        if option not in _COVERED:
            words += [option, _text(getattr(settings, option))]
    name = safe_name("-".join(words))
    seed = f"-seed{settings.seed}"
    if len(name) + len(seed) > _LONGEST:
        name = f"{name[: _LONGEST - len(seed) - 9]}-{_digest(settings)}"
    return name + seed


def distinct(name: str, settings: Settings, taken: Collection[str]) -> str:
    """The name, with a checksum of the run behind it if the name is taken.

    Upper and lower case count as the same, for file systems that do not tell them apart.
    """
    if name.casefold() not in taken:
        return name
    with_digest = f"{name}-{_digest(settings)}"
    count = 2
    while with_digest.casefold() in taken:
        with_digest, count = f"{name}-{_digest(settings)}-{count}", count + 1
    return with_digest


def safe_name(text: str) -> str:
    """A text as words of letters, digits, `.`, `_` and `+` with `-` between them; never empty."""
    return "-".join(re.findall(r"[A-Za-z0-9_.+]+", text)).lstrip(".-") or "run"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Path) or is_npz(str(value)):
        return Path(value).stem
    return str(value)


def _digest(config: Config) -> str:
    return f"{zlib.crc32(json.dumps(json.loads(to_json(config)), sort_keys=True).encode()):08x}"
