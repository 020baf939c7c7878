"""The configuration of a run as a file."""

import dataclasses
import json
from pathlib import Path
from typing import get_args, get_type_hints

from sparsemlp.configuration.config import CHANGEABLE, Config
from sparsemlp.errors import InputError
from sparsemlp.files import Record


def to_json(config: Config) -> str:
    """A configuration as JSON text."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    values["data_dir"] = None if config.data_dir is None else str(config.data_dir)
    return json.dumps(values, indent=2) + "\n"


def lasting_options(config: Config) -> Record:
    """The options that a resumed run keeps, by name, as JSON holds them; data have a checksum."""
    changing = {*CHANGEABLE, "dataset", "data_dir"}
    values = json.loads(to_json(config))
    return {name: value for name, value in values.items() if name not in changing}


def from_json(text: str, source: Path) -> Config:
    """Reads what `to_json` wrote; an option that is younger than the text has its default.

    Raises:
      InputError: the text is no configuration of this version, or damaged; the message names
        `source`.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InputError(
            f"{source} is damaged, it is no JSON ({error}): restore the file, or start a new run"
        ) from error
    try:
        if not isinstance(values, dict) or "dataset" not in values:
            raise TypeError("it names no dataset")
        if values.get("data_dir") is not None:
            values["data_dir"] = Path(values["data_dir"])
        for name, hint in get_type_hints(Config).items():
            if name not in values:
                continue
            kinds = get_args(hint) or (hint,)
            kinds = (*kinds, int) if float in kinds else kinds
            if not isinstance(values[name], kinds):
                raise TypeError(f"{name} is {values[name]!r}")
        return Config(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{source} is no configuration of this version: {error}") from error


def read_config(path: Path) -> Config:
    """Reads the configuration of a run from its file.

    Raises:
      InputError: the file cannot be read, or is no configuration of this version.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    return from_json(text, path)
