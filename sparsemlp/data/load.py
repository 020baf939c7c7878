"""Choosing a data set by name."""

import os
from dataclasses import replace
from pathlib import Path

from sparsemlp.data.cifar10 import is_prepared, prepared_folder, read_cifar10
from sparsemlp.data.dataset import ImageDataset
from sparsemlp.data.digits import load_digits
from sparsemlp.data.download import RemoteFile, has_content, why_unreachable
from sparsemlp.data.npz import load_npz
from sparsemlp.data.prepare import OFFICIAL_ARCHIVE, archive_path, prepare_cifar10
from sparsemlp.errors import InputError
from sparsemlp.paths import at_home, default_data_dir, is_npz

NETWORK_TIMEOUT_S = 5.0


def load_dataset(
    name: str,
    data_dir: Path | None = None,
    *,
    archive: RemoteFile = OFFICIAL_ARCHIVE,
    network_timeout_s: float = NETWORK_TIMEOUT_S,
) -> ImageDataset:
    """Loads an image classification data set into memory.

    Args:
      name: One of

        - `auto`: `cifar10` if it is prepared in `data_dir` or can be downloaded, otherwise
            `digits` with a `notice` that says so.
        - `cifar10`: CIFAR-10 of TFDS, prepared on first use.
        - `digits`: scikit-learn's digits, which need no file and no network.
        - a path that ends in `.npz`: see `sparsemlp.data.npz.load_npz`.
      data_dir: The TFDS `data_dir` for `cifar10`, which must exist. None means the default of
        TFDS, which is made when needed.
      archive: Where `cifar10` is downloaded from.
      network_timeout_s: How long, in seconds, the server of `archive` may take to show that it
        is there; an unresponsive network never blocks longer.

    Returns:
      The data set, decoded. Its `notice`, if there is one, must be shown to the user.

    Raises:
      InputError: The name is unknown, or what it names is missing, damaged or against the rules.
        A named data set never falls back to another one.
    """
    if data_dir is not None:
        data_dir = checked_folder(data_dir)
    if is_npz(name):
        return load_npz(at_home(Path(name)))
    if name == "digits":
        return load_digits()
    if name not in ("auto", "cifar10"):
        raise InputError(
            f"unknown dataset {name!r}: choose auto, cifar10, digits, or the path of an .npz file"
        )

    folder = data_dir or default_data_dir()
    try:
        prepared = is_prepared(folder)
    except OSError as error:
        raise InputError(
            f"{prepared_folder(folder)} is not readable ({error.strerror}): change its "
            "permissions or pass another --data-dir"
        ) from error
    if not prepared:
        obstacle = _why_not_preparable(folder, archive, network_timeout_s)
        if obstacle and name == "auto":
            notice = (
                f"CIFAR-10 is neither prepared in {folder} nor downloadable ({obstacle}): using "
                "scikit-learn's digits instead; pass --dataset=cifar10 --data-dir=DIR with a TFDS "
                "folder that holds CIFAR-10, or --dataset=digits to choose the digits"
            )
            return replace(load_digits(), notice=notice)
        if obstacle:
            raise InputError(
                f"{prepared_folder(folder)} does not exist and CIFAR-10 is not downloadable "
                f"({obstacle}): pass --data-dir=DIR with a TFDS folder that holds CIFAR-10, bring "
                f"the official archive to {archive_path(folder, archive)}, or pass --dataset=digits"
            )
        prepare_cifar10(folder, archive)
    return read_cifar10(folder)


def checked_folder(data_dir: Path) -> Path:
    """The folder of prepared data sets, `~` expanded; InputError if there is none to read."""
    folder = at_home(data_dir)
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise InputError(
            f"data folder {data_dir} {problem}: pass an existing --data-dir, or none for TFDS' own"
        )
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError(
            f"data folder {data_dir} is not readable: change its permissions "
            "or pass another --data-dir"
        )
    return folder


def _why_not_preparable(folder: Path, archive: RemoteFile, timeout_s: float) -> str | None:
    """The reason why CIFAR-10 cannot be brought into `folder`, or None, and the folder is made."""
    if folder.exists() and not os.access(folder, os.W_OK):
        return f"{folder} is not writable"
    if has_content(archive_path(folder, archive), archive.sha256):
        return None
    obstacle = why_unreachable(archive.url, timeout_s)
    if obstacle is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return f"{folder} cannot be made: {error.strerror}"
    return obstacle
