"""The tiny model on the tiny image set of the disk, decoded without worker processes."""

from pathlib import Path
from typing import Any

import tiny

IMAGE_SIZE = 8
RUN: dict[str, Any] = tiny.RUN | {
    "image_size": IMAGE_SIZE,
    "patch_size": 4,
    "workers": 0,
    "model": "resmlp",
    "lr": 1e-3,
}


def start(folder: Path, out: Path, *more: str, **changes: Any) -> int:
    """Runs the training program in this process on a folder of images."""
    flags = tiny.flags(**(RUN | changes))
    return tiny.command(*flags, f"--dataset={folder}", f"--out={out}", *more)
