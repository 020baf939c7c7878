"""Leaving in good order: SIGINT and SIGTERM ask a run to stop at its next safe place."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from sparsemlp.exit_codes import tell

CHUNK_SECONDS = 2.0
"""About how long one call of a training program lasts: how soon a signal is obeyed."""


class Interruption:
    """Whether a signal has asked the run to stop, and which.

    Attributes:
      signal: number of the last signal, or None.
      heard: numbers of all of them.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.heard: set[int] = set()

    @property
    def name(self) -> str:
        """Name of the signal, as `SIGINT`."""
        return "" if self.signal is None else signal.Signals(self.signal).name


@contextlib.contextmanager
def deferred_signals() -> Iterator[Interruption]:
    """Notes the first SIGINT or SIGTERM instead of dying of it; a second one acts at once.

    That holds even where the signals were ignored, as in the background of a shell script.
    """
    interruption = Interruption()
    at_once = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _end}
    before = {number: signal.getsignal(number) for number in at_once}

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        interruption.signal = number
        interruption.heard.add(number)
        for each, handler in at_once.items():
            signal.signal(each, handler)
        tell(
            f"{interruption.name}: finishing the steps under way, then saving; a second signal "
            "stops at once"
        )

    for number in at_once:
        signal.signal(number, note)
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    """Dies of a signal; a handler, as Python reports a signal that already waits for one if not."""
    del frame
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


@contextlib.contextmanager
def noted_signals(*numbers: int) -> Iterator[Interruption]:
    """Notes these signals and dies of none, for a program that somebody else will end for sure."""
    interruption = Interruption()

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        interruption.signal = number
        interruption.heard.add(number)

    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
