"""TensorBoard events of a run."""

import importlib
from pathlib import Path
from typing import Any

from sparsemlp.errors import InputError

_TAGS = {
    "loss": "train/loss",
    "train_top1": "train/top1",
    "train_top5": "train/top5",
    "test_top1": "test/top1",
    "test_top5": "test/top5",
    "density": "mask/density",
    "changed_blocks": "mask/changed_blocks",
    "dropped_norm": "mask/dropped_norm",
    "learning_rate": "train/learning_rate",
    "images_per_second": "train/images_per_second",
}


def require_tensorboardx() -> Any:
    """The module tensorboardX.

    Raises:
      InputError: it is not installed.
    """
    try:
        return importlib.import_module("tensorboardX")
    except ImportError as error:
        raise InputError(
            "--tensorboard needs the package tensorboardX: pip install tensorboardX"
        ) from error


class TensorBoard:
    """Writes the records of a run as scalars.

    Args:
      folder: where the events go.
      step: steps done already; events of later ones, of a run that was cut short, are purged.

    Raises:
      InputError: tensorboardX is not installed.
    """

    def __init__(self, folder: Path, step: int) -> None:
        writer = require_tensorboardx().SummaryWriter
        self._writer = writer(str(folder), purge_step=step + 1 if step else None)

    def write(self, record: dict[str, Any]) -> None:
        """Writes one epoch, under its step."""
        for key, tag in _TAGS.items():
            self._writer.add_scalar(tag, record[key], record["step"])
        self._writer.add_text("dataset", str(record["dataset"]), record["step"])
        self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        self._writer.close()
