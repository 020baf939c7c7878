"""The folder of a run: what lies where, and who may write there."""

import contextlib
import datetime
import json
from collections.abc import Collection, Iterator
from pathlib import Path

from sparsemlp.errors import InputError, SaveError, in_a_line
from sparsemlp.files import UNFINISHED, Record, read_record, write_json
from sparsemlp.runs.lock import exclusive

_LEFTOVERS = (".lock", "failure.json")
"""What a run that was killed or failed before its first file may leave, beside unfinished ones."""


ANEW = "start anew with --out (in a sweep: move this folder away)"
"""The way out where a run lacks what it needs to go on."""


class RunFolder:
    """Paths of a run.

    Args:
      path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.mask_activity = path / "mask_activity.npz"
        self.budget = path / "budget.json"
        self.checkpoints = path / "checkpoints"
        self.curves = path / "curves.png"
        self.masks = path / "masks.png"
        self.summary = path / "summary.json"
        self.failure = path / "failure.json"
        self.tensorboard = path / "tensorboard"

    def create(self) -> None:
        """Makes the folder and its parents.

        Raises:
          InputError: there is something in it already, or it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            occupied = any(
                path.name not in _LEFTOVERS and path.suffix != UNFINISHED
                for path in self.path.iterdir()
            )
        except OSError as error:
            raise InputError(
                f"the run folder {self.path} cannot be made: {error.strerror}; choose another "
                "with --out"
            ) from error
        if occupied:
            way_out = "choose another folder with --out"
            if self.config.is_file():
                way_out = f"continue that run with --resume {self.path}, or {way_out}"
            raise InputError(f"the run folder {self.path} is not empty: {way_out}")

    def check_resumable(self) -> None:
        """Raises InputError unless a run was started in this folder, which can be read."""
        try:
            is_started = self.config.is_file()
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from error
        if not is_started:
            raise InputError(
                f"{self.path} is no run folder: it has no {self.config.name}; --resume takes the "
                "folder that an earlier run printed at its start"
            )

    def is_finished(self) -> bool:
        """Whether there is a summary, and it can be read."""
        return self.read_summary() is not None

    def read_summary(self) -> Record | None:
        """The numbers of the finished run; None if it is not, or what says so is damaged."""
        summary = read_record(self.summary)
        return summary if summary is not None and "test_top1" in summary else None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps every other process from writing here; the system lets go when this one ends.

        Raises:
          OccupiedError: another process trains in this folder.
          InputError: it cannot be written.
        """
        occupied = f"another process is training in {self.path}: wait for it, or stop it first"
        with exclusive(self.path, occupied):
            yield

    def read_budget(self, kernels: Collection[str]) -> dict[str, float]:
        """The ratio of each masked kernel, as the first masked step of a run wrote it.

        Args:
          kernels: paths of all masked kernels.

        Raises:
          InputError: the file does not say it of all of them.
        """
        ratios: dict[str, float] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            found = json.loads(self.budget.read_text())
            ratios = {path: float(ratio) for path, ratio in found.items()}
        if set(ratios) != set(kernels) or not all(0 <= ratio < 1 for ratio in ratios.values()):
            raise InputError(
                f"{self.budget} is damaged, which says how many blocks each layer keeps: restore "
                "the file, or begin the run anew in another folder"
            )
        return ratios

    def read_environment(self) -> Record:
        """What `environment.json` says, empty if it is lost or damaged."""
        return read_record(self.environment) or {}

    def write_failure(self, error: BaseException) -> None:
        """Records that the run failed: the error in one line, its kind, and the time.

        Raises:
          SaveError: the disk is full or refuses the write.
        """
        line = in_a_line(error)
        record: Record = {"error": line, "kind": type(error).__name__, "time": _now()}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as refused:
            raise SaveError(
                f"cannot record that {self.path.name} failed ({line}): {refused}"
            ) from refused
        write_json(self.failure, record)

    def read_failure(self) -> str:
        """Why the run failed, in one line."""
        try:
            record = json.loads(self.failure.read_text())
            return f"{record['kind']}: {record['error']}"
        except (OSError, ValueError, TypeError, KeyError):
            return f"{self.failure} cannot be read"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
