"""What a sweep says while it trains: two bars on a terminal, plain lines elsewhere."""

import time
from typing import Any

from rich.console import Console

from sparsemlp.files import Record
from sparsemlp.runs.progress import Reporter

_SECONDS_BETWEEN_LINES = 60.0


class SweepReporter(Reporter):
    """Prints the progress of all runs of a sweep, and of the one that is trained.

    The time left is that of the epochs still to train at the pace of those trained so far.

    Args:
      n_runs: all runs of the sweep.
      n_done: those that are done already.
      n_epochs: epochs of the others.
      console: where to print; standard output by default.
    """

    def __init__(
        self, n_runs: int, n_done: int, n_epochs: int, console: Console | None = None
    ) -> None:
        super().__init__(0, console)
        self._n_runs = n_runs
        self._n_done = n_done
        self._waiting = n_epochs
        self._run_left = 0.0
        self._reached = 0.0
        self._trained = 0.0
        self._name = ""
        self._began = self._last_line = time.monotonic()
        self._overall: Any = None

    def __enter__(self) -> "SweepReporter":
        super().__enter__()
        if self._bar is not None:
            self._overall = self._bar.add_task("sweep", total=self._n_runs, state="")
            self._show()
        return self

    def begin(self, name: str, n_epochs: int) -> None:
        """Says that a run, or several together, is trained now."""
        self._name, self._n_epochs, self._reached = name, n_epochs, 0.0
        self._waiting -= n_epochs
        self._run_left = float(n_epochs)
        self._last_line = time.monotonic()
        if self._bar is None:
            self.say(f"{self._place()} {name}")
        else:
            self._bar.reset(self._task, total=None, state="", description=name)

    def end(self, name: str, told: str) -> None:
        """Says how a run ended, and how much time the others will take."""
        place, self._run_left = self._place(), 0.0
        self._n_done += 1
        self.say(f"{place} {name}: {told}{self._time_left()}")
        self._show()

    def begins_at(self, done: int, total: int) -> None:
        """Says where a run goes on, as `Reporter.begins_at`."""
        self._reached = self._n_epochs * done / total

    def steps(
        self, *, done: int, total: int, epoch: int, loss: float, top1: float, rate: float | None
    ) -> None:
        """Moves the bars, as `Reporter.steps`."""
        now = self._n_epochs * done / total
        self._trained += max(0.0, now - self._reached)
        self._reached, self._run_left = now, self._n_epochs - now
        super().steps(done=done, total=total, epoch=epoch, loss=loss, top1=top1, rate=rate)
        self._show()

    def epoch(self, record: Record, n_runs: int = 1) -> None:
        """Prints the line of an epoch where there is no bar, one a minute."""
        now = time.monotonic()
        if self._bar is None and now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            super().epoch(record, n_runs)

    def _place(self) -> str:
        width = len(str(self._n_runs))
        return f"[{self._n_done + 1:>{width}}/{self._n_runs}]"

    def _time_left(self) -> str:
        left = self._waiting + self._run_left
        if not self._trained or not left:
            return ""
        seconds = (time.monotonic() - self._began) / self._trained * left
        return f", {in_words(seconds)} left"

    def _show(self) -> None:
        if self._bar is not None and self._overall is not None:
            self._bar.update(
                self._overall,
                completed=self._n_done,
                description=f"run {min(self._n_done + 1, self._n_runs)}/{self._n_runs}",
                state=self._name + self._time_left(),
            )


def in_words(seconds: float) -> str:
    """A duration as `45 s`, `12 min`, `3 h 20 min` or `2 d 4 h`."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 60 // 24} d {minutes // 60 % 24} h"
