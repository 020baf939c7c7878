"""The records of a run, one JSON line each: `metrics.jsonl`.

A float that is not finite is written as `files.encode` does and read back as a float.
"""

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any

from sparsemlp.errors import InputError, SaveError, refusal
from sparsemlp.files import Record, encode, sync, write_whole

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class History:
    """A file of records, one line each, of which only the last can be cut short by a kill.

    Args:
      path: the file; made by the first `append`, its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, record: Record) -> None:
        """Adds one record, on the disk on return.

        A last line that a kill cut short is dropped first.

        Args:
          record: anything that JSON can hold; not the strings that stand for non-finite floats.

        Raises:
          SaveError: the disk is full or refuses the write; the file is as it was.
        """
        try:
            is_new = not self._path.exists()
            with self._path.open("a+b", buffering=0) as file:
                file.seek(0)
                n_complete_bytes = file.read().rfind(b"\n") + 1
                file.truncate(n_complete_bytes)
                try:
                    _write_durably(file.fileno(), encode(record) + b"\n")
                except OSError:
                    with contextlib.suppress(OSError):
                        file.truncate(n_complete_bytes)
                    raise
            if is_new:
                sync(self._path.parent)
        except OSError as error:
            raise SaveError(
                f"cannot add a record to {self._path}: {refusal(error)} and continue, the records "
                "before are intact"
            ) from error

    def read(self) -> list[Record]:
        """Returns all records in file order; none if there is no file.

        A last line that a kill cut short is left out.

        Raises:
          InputError: a complete line is no JSON object.
        """
        if not self._path.exists():
            return []
        lines = self._path.read_bytes().split(b"\n")[:-1]
        return [self._decode(line, number) for number, line in enumerate(lines, start=1)]

    def keep_through(self, epoch: int) -> None:
        """Drops what a run that continues after an epoch will record again, in one atomic step.

        Keeps the records with `record["epoch"] <= epoch`, of equal epochs the last, and no last
        line that was cut short.

        Args:
          epoch: the last epoch to keep.

        Raises:
          InputError: a complete line is no JSON object with an integer `epoch`.
          SaveError: the disk is full or refuses the write; the file is as it was.
        """
        if not self._path.exists():
            return
        kept: dict[int, Record] = {}
        for number, record in enumerate(self.read(), start=1):
            at = record.get("epoch")
            if not isinstance(at, int):
                raise self._input_error(number, f"epoch is {at!r}, not an integer")
            if at <= epoch:
                kept[at] = record
        lines = b"".join(encode(record) + b"\n" for record in kept.values())
        write_whole(self._path, lambda file: file.write(lines))

    def _decode(self, line: bytes, number: int) -> Record:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise self._input_error(number, f"not JSON, {error}") from error
        if not isinstance(record, dict):
            raise self._input_error(number, f"a {type(record).__name__}, not an object")
        return {key: _with_floats(value) for key, value in record.items()}

    def _input_error(self, number: int, what: str) -> InputError:
        return InputError(f"{self._path}, line {number}: {what}; repair or delete that line")


def _write_durably(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
    os.fsync(descriptor)


def _with_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_floats(item) for item in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value
