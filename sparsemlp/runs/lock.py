"""Folders that only one process may work in."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from sparsemlp.errors import InputError, refusal


class OccupiedError(InputError):
    """Another process works in a folder; the message says what to do."""


@contextlib.contextmanager
def exclusive(folder: Path, occupied: str) -> Iterator[None]:
    """Keeps every other process out; the system lets go when this one ends, however it ends.

    Args:
      folder: an existing folder; the file `.lock` in it stays.
      occupied: what to say if another process is there.

    Raises:
      OccupiedError: another process is there.
      InputError: the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context((folder / ".lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OccupiedError(occupied) from error
        except OSError as error:
            raise InputError(f"the folder {folder} cannot be written: {refusal(error)}") from error
        yield
