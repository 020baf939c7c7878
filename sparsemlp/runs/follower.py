"""The recorder of a process other than the first: it computes the same, and writes nothing."""

from collections.abc import Collection
from typing import Any

from sparsemlp.checkpoints.checkpoint import Restored
from sparsemlp.distributed.processes import shared
from sparsemlp.files import Record
from sparsemlp.runs.history import History
from sparsemlp.runs.recorder import Recorder
from sparsemlp.train.train_state import TrainState


class Follower(Recorder):
    """Keeps up with the recorder of process 0, whose folder it never touches."""

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def restore(self, among: Collection[int] | None = None) -> Restored | None:
        """Leaves the checkpoints to process 0, which sends the state."""
        del among

    def describe(self, more: Any = None) -> None:
        """Leaves the description to process 0."""

    def save_first(self, state: TrainState) -> None:
        """Leaves the checkpoint to process 0."""

    def begin(self, step: int) -> None:
        """Takes over the records of process 0."""
        self.history = Recollection(shared(self.history.read))

    def offer(self, *_: Any, **__: Any) -> None:
        """Leaves the checkpoint to process 0."""

    def save_waiting(self) -> None:
        """Leaves the checkpoint to process 0."""

    def _write_activity(self, state: TrainState, step: int) -> None:
        pass


class Recollection(History):
    """Records in memory, without a file."""

    def __init__(self, records: list[Record]) -> None:
        self._records = list(records)

    def append(self, record: Record) -> None:
        """Adds one record."""
        self._records.append(record)

    def read(self) -> list[Record]:
        """Returns all records in their order."""
        return list(self._records)
