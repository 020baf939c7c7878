"""TensorBoard events of a run."""

import contextlib
import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparsemlp.errors import InputError, SaveError, refusal

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

    Without tensorboardX's `SummaryWriter`, whose thread would meet a full disk by itself.

    Args:
      folder: where the events go.
      step: steps done already; events of later ones, of a run that was cut short, are purged.

    Raises:
      InputError: tensorboardX is not installed.
      SaveError: the disk is full or refuses the write.
    """

    def __init__(self, folder: Path, step: int) -> None:
        require_tensorboardx()
        self._folder = folder
        self._summary, self._events, files = (
            importlib.import_module(f"tensorboardX.{name}")
            for name in ("summary", "proto.event_pb2", "event_file_writer")
        )
        with self._refusals_told():
            folder.mkdir(parents=True, exist_ok=True)
            goes_on = any(folder.glob("events*"))
            self._writer = files.EventsWriter(str(folder / "events"))
            if goes_on:
                start = self._events.SessionLog(status=self._events.SessionLog.START)
                self._add(step + 1, session_log=start)
            self._writer.flush()

    def write(self, record: dict[str, Any]) -> None:
        """Writes one epoch, under its step.

        Raises:
          SaveError: the disk is full or refuses the write.
        """
        step = record["step"]
        with self._refusals_told():
            for key, tag in _TAGS.items():
                self._add(step, summary=self._summary.scalar(tag, record[key]))
            self._add(step, summary=self._summary.text("dataset", str(record["dataset"])))
            self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        with self._refusals_told():
            self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        event = self._events.Event(step=step, wall_time=time.time(), **content)
        self._writer.write_event(event)

    @contextlib.contextmanager
    def _refusals_told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SaveError(
                f"cannot write to {self._folder}: {refusal(error)} and continue"
            ) from error
