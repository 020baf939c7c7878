"""The keys of a grid file: options of a run under their own names and under the thesis'.

| key of the thesis | here |
|---|---|
| `model_config` | `config`; a second pair of quotes is stripped |
| `opt`, `data_set` | `optimizer`, `dataset` |
| `embedding_dim`, `mixup_prob` | `dim`, `mix_probability` |
| `num_classes`, `image_size` | those of the data set; a large set is decoded to `image_size` |
| `pretrained_classes` | ignored: nothing is pretrained here |
| meta `gpus`, `sandbox`, `script` | ignored: `sbatch` says what a job gets, this program runs it |
"""

import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from sparsemlp.configuration.config import Config
from sparsemlp.errors import InputError
from sparsemlp.paths import at_home

SECTIONS = ("hp", "meta", "fixed", "sbatch")

STATED = ("num_classes", "image_size")
"""Keys that say what the data set says as well."""

IGNORED = ("pretrained_classes",)
"""Keys of `fixed` that are read and mean nothing here."""

META = ("run", "mode", "prefix", "gpus", "sandbox", "script")
"""Keys of `meta`; the last three mean nothing here."""

_THESIS = {
    "model_config": "config",
    "opt": "optimizer",
    "data_set": "dataset",
    "embedding_dim": "dim",
    "mixup_prob": "mix_probability",
}
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_KINDS: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
}


def option_of(key: str) -> str | None:
    """The option of `Config` that a key stands for, None if there is none."""
    name = _THESIS.get(key, key.replace("-", "_"))
    return name if name in get_type_hints(Config) and name not in STATED else None


def known_keys() -> tuple[str, ...]:
    """Every key that `hp` and `fixed` know."""
    return (*get_type_hints(Config), *_THESIS, *STATED, *IGNORED)


def parse_value(key: str, text: str | None) -> Any:
    """The value of a key as the type of its option, from the text in the file.

    The option says the type, not YAML: `1e-4` is a number here, and `2:4` a text.

    Args:
      key: a key that `option_of` knows, or one of `STATED`.
      text: the value as written; None for null.

    Raises:
      InputError: the text is nothing of that type.
    """
    option = option_of(key)
    hint = int if option is None else get_type_hints(Config)[option]
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if text is None:
        if types.NoneType in kinds:
            return None
        raise InputError(f"{key} has no value")
    (kind,) = (each for each in kinds if each is not types.NoneType)
    try:
        return _parse(kind, _THESIS_VALUES.get(key, str)(text))
    except ValueError as error:
        raise InputError(f"{key} is {text!r}, not {_told(kind)}") from error


def _parse(kind: Any, text: str) -> Any:
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueError(text)
        return _BOOLEANS[text.lower()]
    if kind is int and not re.fullmatch(r"[+-]?\d+", text):
        raise ValueError(text)
    return at_home(Path(text)).absolute() if kind is Path else kind(text)


def _told(kind: Any) -> str:
    return _KINDS.get(kind, str(kind))


def _unquoted(text: str) -> str:
    """A model string without the second pair of quotes that the thesis' files have."""
    bare = text.strip()
    if len(bare) >= 2 and bare[0] == bare[-1] and bare[0] in "\"'":
        return bare[1:-1].strip()
    return bare


def _data_set(text: str) -> str:
    """The name of a data set in other spellings: `CIFAR10`, `CIFAR-10`, `cifar`."""
    plain = re.sub(r"[-_ ]", "", text.lower())
    return "cifar10" if plain in ("cifar", "cifar10") else text


_THESIS_VALUES: dict[str, Callable[[str], str]] = {
    "model_config": _unquoted,
    "config": _unquoted,
    "data_set": _data_set,
    "opt": str.lower,
}
"""How values under the thesis' names are read."""
