"""Notices a kernel that never ends and a device that no longer answers, and says whose fault it is.

A kernel that faults breaks every later call of its process, or aborts the process on the spot, and
one that waits for ever cannot be stopped from within. So all of them end the process, and are
written down, before it or by the next: the same command, given again, leaves out what was to blame.
"""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from sparsemlp.device import device_answers
from sparsemlp.errors import DeviceLostError

Guard = Callable[[str], contextlib.AbstractContextManager[None]]
"""Watches over a piece of work, which has a name."""

STUCK = 3
"""Exit code of a process that a kernel held up."""
LONGEST_SECONDS = 15.0
"""How long a piece of work may take: a compiled program runs for milliseconds."""
ENDED = "ended the process while it ran, twice"
"""The reason against what was at work when a process ended without a word."""


class WorkLostError(DeviceLostError):
    """The device does not answer any more, after a piece of work.

    Attributes:
      name: of the work after which it did not.
      reason: what it said.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"the device does not answer after {name} ({reason}): give the same command again, "
            "which leaves that out and goes on"
        )
        self.name = name
        self.reason = reason


class AtWork:
    """A file that names what a process has at work, and stays if the process dies of it.

    Args:
      path: the file; it is there only while something is at work.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, key: str, name: str) -> None:
        """Names what is at work."""
        self._path.write_text(json.dumps([key, name]))

    def end(self) -> None:
        """Nothing is at work any more."""
        self._path.unlink(missing_ok=True)

    def left(self) -> tuple[str, str] | None:
        """Key and name of what an earlier process died of, told once; None if it did not.

        A process that was killed from outside looks the same: see `died_again`.
        """
        if not self._path.exists():
            return None
        try:
            key, name = json.loads(self._path.read_text())
        except ValueError:  # It died before it could write the name.
            return None
        finally:
            self.end()
        return key, name

    def died_again(self) -> tuple[str, str] | None:
        """Key and name of what two processes died of, told once; None if they did not.

        So whoever kills a process, a time limit as a rule, spoils nothing: the first time it is
        taken to be that.
        """
        left = self.left()
        if left is None:
            return None
        once = self._path.with_name(f"{self._path.name}.once")
        before = once.read_text() if once.exists() else ""
        if before == json.dumps(left):
            once.unlink()
            return left
        once.write_text(json.dumps(left))
        return None


def unguarded(_: str) -> contextlib.AbstractContextManager[None]:
    """A guard that does not watch."""
    return contextlib.nullcontext()


def guard_for(
    write_down: Callable[[str, str], None],
    at_work: AtWork,
    key: str,
    *,
    is_trial: bool,
    seconds: float = LONGEST_SECONDS,
) -> Guard:
    """A guard that ends this process with `STUCK` when a piece of work takes too long.

    Args:
      write_down: is told the name of the work and the reason before.
      at_work: is told what is at work, for the process that finds this one dead.
      key: what the pieces of work belong to.
      is_trial: whether kernels are interpreted, and may take as long as they want.
      seconds: how long a piece of work may take else.
    """
    if is_trial:
        return unguarded

    def give_up(name: str) -> None:
        reason = f"took longer than {seconds:g} s"
        write_down(name, reason)
        at_work.end()
        print(
            f"error: {name} {reason}: give the same command again, which leaves that out and goes "
            "on",
            file=sys.stderr,
            flush=True,
        )
        os._exit(STUCK)

    @contextlib.contextmanager
    def guard(name: str) -> Iterator[None]:
        timer = threading.Timer(seconds, give_up, (name,))
        timer.daemon = True
        at_work.begin(key, name)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            at_work.end()

    return guard


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM, as a time limit sends it, ends a program as ctrl-C does: with its parts."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def require_device(name: str, error: Exception) -> None:
    """Finds out whether the device still answers after an error.

    Raises:
      WorkLostError: it does not, after the work of this name.
    """
    if not device_answers():
        raise WorkLostError(name, reason_of(error)) from error


def reason_of(error: Exception) -> str:
    """An error in a line that is not too long."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
