"""Paths as people write them."""

from pathlib import Path

from sparsemlp.errors import InputError


def at_home(path: Path) -> Path:
    """A path with the folder that `~` or `~USER` stands for.

    Raises:
      InputError: there is no such user.
    """
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise InputError(
            f"{path}: {path.parts[0]} is nobody's home folder here; write the whole path"
        ) from error
