"""A checksum of code, which says whether numbers are of the same."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pallas_kernels
import sparsemlp

_CODE = ("*.py", "*.h", "tables/*.json")


def checksum(*folders: Path, kinds: Sequence[str] = ("*.py",)) -> str:
    """Of all files of some kinds in some folders, with their places in these: 16 hex digits."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(p for kind in kinds for p in folder.rglob(kind)):
            digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def library_checksum(*more: Path) -> str:
    """Of kernels, their tables, by which they are cut, models, and of code in more folders."""
    packages = (Path(module.__file__ or "").parent for module in (pallas_kernels, sparsemlp))
    return checksum(*packages, *more, kinds=_CODE)
