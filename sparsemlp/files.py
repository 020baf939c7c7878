"""Files that are either whole or not there, even if the power fails; folders to write to."""

import contextlib
import csv
import io
import json
import math
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from sparsemlp.errors import InputError, SaveError, refusal

Record = dict[str, Any]
"""A JSON object: strings, numbers, booleans, None, and lists and records of them."""
UNFINISHED = ".saving"
"""What the name of a file ends in that is not whole yet; one whose writer was killed stays."""


def make_folder(path: Path, told: str | None = None) -> None:
    """Makes a folder to write to, with its parents.

    Args:
      path: the folder; it may exist.
      told: what to call it in an error, its path by itself.

    Raises:
      InputError: a file is in its place, or it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{told or path} is no folder to write to: {error.strerror}") from error


def check_writable(path: Path, told: str) -> None:
    """Makes sure that a file can be written, before anything is done for it.

    Args:
      path: the file; what it holds stays.
      told: what to call it in an error.

    Raises:
      InputError: a folder is in its place, or its own is not there or refuses files.
    """
    try:
        if is_file := not path.is_dir():
            partial = _partial(path)
            partial.touch()
            partial.unlink()
    except OSError as error:
        raise InputError(f"{told} cannot be written: {refusal(error)}") from error
    if not is_file:
        raise InputError(f"{told} is a folder: name a file")


def write_whole(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Writes a file so that a reader finds the old one or the new one, never a part.

    Of several writers at once the last one's file stays.

    Args:
      path: the file; its folder must exist.
      write: writes the content to the open file that it is given.

    Raises:
      SaveError: the disk is full or refuses the write; the old file is as it was.
    """
    partial = _partial(path)
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise SaveError(
            f"cannot write {path}: {refusal(error)} and continue, what was saved before is intact"
        ) from error


def _partial(path: Path) -> Path:
    """A file beside one to be written, of this writer alone."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}{UNFINISHED}")


def write_json(path: Path, value: Record) -> None:
    """Writes a JSON file as a whole.

    Raises:
      SaveError: as `write_whole`.
    """
    data = encode(value, indent=2) + b"\n"
    write_whole(path, lambda file: file.write(data))


def write_csv(path: Path, heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a table as a whole; numbers as they are, unrounded.

    Raises:
      SaveError: as `write_whole`.
    """
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([heading, *rows])
    write_whole(path, lambda file: file.write(text.getvalue().encode()))


def read_record(path: Path) -> Record | None:
    """A JSON object from a file; None if it is lost or damaged."""
    with contextlib.suppress(OSError, ValueError):
        value = json.loads(path.read_text())
        if isinstance(value, dict):
            return value
    return None


def encode(value: Record, indent: int | None = None) -> bytes:
    """A record as strict JSON, so that any reader takes it.

    A float that is not finite becomes the string `"NaN"`, `"Infinity"` or `"-Infinity"`.
    """
    return json.dumps(_with_strings(value), indent=indent, allow_nan=False).encode()


def _with_strings(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_strings(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_strings(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def sync(path: Path) -> None:
    """Forces a file, or the names in a folder, to the disk.

    Args:
      path: an existing file or folder.

    Raises:
      OSError: the disk refuses.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
