"""A plain folder `CLASS/*.JPEG` as a source of encoded images."""

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from sparsemlp.errors import InputError

SUFFIXES = (".jpeg", ".jpg", ".png")
"""How the names of image files end, in small or capital letters."""
_SEPARATOR = b"\0"


@dataclass(frozen=True, eq=False)
class FolderSource:
    """The images below a folder of class folders, in the order of their sorted paths.

    A million names are kept as one string of bytes, which worker processes get at once.

    Attributes:
      folder: The folder of the class folders.
      classes: Names of the class folders; the label of an image is the place of its folder.
      n_ignored: Files that are left out because of how their names end.
      n_elsewhere: Images beside the class folders and folders inside them, left out too.
    """

    folder: Path
    classes: tuple[str, ...]
    n_ignored: int
    n_elsewhere: int
    _names: bytes = field(repr=False)
    _ends: Int64[np.ndarray, " images"] = field(repr=False)
    _first_of_class: Int64[np.ndarray, " classes"] = field(repr=False)

    def __len__(self) -> int:
        return len(self._ends)

    def read(self, index: int) -> tuple[bytes, int]:
        """An encoded image and its label.

        Raises:
          OSError: The file cannot be read, or is a pipe or a device.
        """
        path, label = self._locate(index)
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "no regular file", path)
            return file.read(), label

    def name(self, index: int) -> str:
        """The path of an image."""
        return self._locate(index)[0]

    @property
    def content(self) -> bytes:
        """All names of classes and files and where each class begins, to know the folder again."""
        begins = self._first_of_class.astype("<i8").tobytes()
        return _SEPARATOR.join([*map(os.fsencode, self.classes), self._names, begins])

    @property
    def empty_classes(self) -> tuple[str, ...]:
        """The classes without an image."""
        ends = np.append(self._first_of_class[1:], len(self))
        empty = np.flatnonzero(ends == self._first_of_class)
        return tuple(self.classes[index] for index in empty)

    def _locate(self, index: int) -> tuple[str, int]:
        start = self._ends[index - 1] + 1 if index else 0
        name = os.fsdecode(self._names[start : self._ends[index]])
        # Of several classes that begin at the same image all but the last are empty.
        label = int(np.searchsorted(self._first_of_class, index, side="right")) - 1
        return os.path.join(self.folder, self.classes[label], name), label


def find_images(folder: Path) -> FolderSource:
    """Looks for the images in a folder of class folders, without opening them.

    Hidden files and folders do not count; a file whose name ends in none of `SUFFIXES` is left
    out and counted, and so are images beside the class folders and folders inside them.

    Args:
      folder: A folder whose folders are the classes.

    Raises:
      InputError: The folder cannot be read, or has no class folders or no images.
    """
    try:
        classes = tuple(sorted(entry.name for entry in _entries(folder) if entry.is_dir()))
        n_elsewhere = sum(_is_image(e.name) and not e.is_dir() for e in _entries(folder))
        if not classes:
            raise InputError(
                f"{folder} {'holds images, but' if n_elsewhere else 'holds'} no class folders: "
                "sort the images into a folder for each class, CLASS/*.JPEG"
            )
        names: list[bytes] = []
        first_of_class, n_ignored = [], 0
        for name in classes:
            first_of_class.append(len(names))
            entries = _entries(folder / name)
            files = [entry.name for entry in entries if not entry.is_dir()]
            n_elsewhere += len(entries) - len(files)
            images = sorted(os.fsencode(file) for file in files if _is_image(file))
            names += images
            n_ignored += len(files) - len(images)
    except OSError as error:
        raise InputError(
            f"{error.filename or folder} cannot be read ({error.strerror or error}): give a folder "
            "with train/CLASS/*.JPEG and val/CLASS/*.JPEG"
        ) from error
    if not names:
        raise InputError(
            f"{folder} has {len(classes)} class folders and no images in them: the names of images "
            f"end in {', '.join(SUFFIXES)}"
        )
    lengths = np.fromiter(map(len, names), np.int64, len(names))
    return FolderSource(
        folder=folder,
        classes=classes,
        n_ignored=n_ignored,
        n_elsewhere=n_elsewhere,
        _names=_SEPARATOR.join(names),
        _ends=np.cumsum(lengths + 1) - 1,
        _first_of_class=np.asarray(first_of_class, np.int64),
    )


def check_same_classes(train: FolderSource, validation: FolderSource) -> None:
    """Raises InputError unless both folders have class folders of the same names."""
    for one, other in ((train, validation), (validation, train)):
        if missing := sorted(set(one.classes) - set(other.classes)):
            raise InputError(
                f"{other.folder} has {len(other.classes)} classes and {one.folder} "
                f"{len(one.classes)}: it lacks {_some(missing)}; both need the same class folders"
            )


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file; of a named pipe nobody waits for the writer, who may never come."""
    return os.open(path, flags | os.O_NONBLOCK)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
