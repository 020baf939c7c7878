"""What a run says while it trains: a progress bar on a terminal, plain lines elsewhere."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sparsemlp.files import Record

_BEHIND = "rich_proxied_file"
"""Attribute of what rich puts in the place of standard output: what it stands for."""


class TalkativeConsole(Console):
    """A console whose reader or terminal may go away without ending the run.

    So do `| head` and a connection that is closed.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, file=cast(IO[str], _StandardOutput()))


class _StandardOutput:
    """Standard output, which goes on in silence when nobody takes what is written to it."""

    @property
    def _file(self) -> Any:
        """Behind what rich puts in its place while a bar is shown."""
        return getattr(sys.stdout, _BEHIND, sys.stdout)

    def __getattr__(self, name: str) -> Any:
        if name == _BEHIND:
            raise AttributeError(name)
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        with self._silent_if_refused():
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with self._silent_if_refused():
            self._file.flush()

    @contextlib.contextmanager
    def _silent_if_refused(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            # What is still in the buffer goes nowhere, now and when the program ends.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._file.fileno())


def say(console: Console, line: str, style: str | None = None) -> None:
    """Prints a line as it is, whatever looks like markup in it and however long it is."""
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


class Reporter(contextlib.AbstractContextManager):
    """Prints the progress of one run.

    Args:
      n_epochs: epochs of the whole run.
      console: where to print; standard output by default.
    """

    def __init__(self, n_epochs: int, console: Console | None = None) -> None:
        self._n_epochs = n_epochs
        self._console = TalkativeConsole() if console is None else console
        self._bar: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> "Reporter":
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task("starting", total=None, state="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, line: str, style: str | None = None) -> None:
        """Prints one line."""
        say(self._console, line, style)

    def begins_at(self, done: int, total: int) -> None:
        """Says how many steps were done before, of how many, when a run begins or goes on."""

    def steps(
        self, *, done: int, total: int, epoch: int, loss: float, top1: float, rate: float | None
    ) -> None:
        """Moves the bar.

        Args:
          done: steps done in the whole run.
          total: steps of the whole run.
          epoch: the epoch under way, from 1.
          loss: mean loss of this epoch so far.
          top1: training accuracy of this epoch so far, as a fraction.
          rate: images a second, None before it is known.
        """
        if self._bar is None:
            return
        speed = "" if rate is None else f"  {rate:,.0f} images/s"
        self._bar.update(
            self._task,
            description=f"epoch {epoch}/{self._n_epochs}",
            completed=done,
            total=total,
            state=f"loss {loss:.4f}  train {top1:.1%}{speed}",
        )

    def waiting(self, what: str) -> None:
        """Says what the bar waits for, such as a compilation."""
        if self._bar is not None:
            self._bar.update(self._task, state=what)

    def epoch(self, record: Record, n_runs: int = 1) -> None:
        """Prints the line of a finished epoch.

        Args:
          record: what goes to `metrics.jsonl`.
          n_runs: of how many runs the numbers are means.
        """
        of_many = f"  (means of {n_runs} runs)" if n_runs > 1 else ""
        width = len(str(self._n_epochs))
        self.say(
            f"epoch {record['epoch']:>{width}}/{self._n_epochs}  loss {record['loss']:.4f}  "
            f"train {record['train_top1']:.2%}  test {record['test_top1']:.2%}  "
            f"top5 {record['test_top5']:.2%}  density {record['density']:.3f}  "
            f"changed {record['changed_blocks']:.3f}  {record['images_per_second']:,.0f} images/s"
            f"{of_many}"
        )
