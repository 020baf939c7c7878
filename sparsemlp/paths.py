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


def default_data_dir() -> Path:
    """Where TensorFlow Datasets keeps data sets unless it is told otherwise."""
    from tensorflow_datasets.core import constants

    return Path(constants.DATA_DIR).expanduser()


def is_npz(name: str) -> bool:
    """Whether a data set is named by an `.npz` file, in small letters or capitals."""
    return name.lower().endswith(".npz")
