"""Notices a kernel that never ends and a device that no longer answers, and says whose fault it is.

A kernel that faults breaks every later call of its process, and one that waits for ever cannot be
stopped from within. So both end the process, after they are written down: the same command, given
again, leaves out what was to blame.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from sparsemlp import InputError

Guard = Callable[[str], contextlib.AbstractContextManager[None]]
"""Watches over a piece of work, which has a name."""

STUCK = 3
"""Exit code of a process that a kernel held up."""


class DeviceLostError(InputError):
    """The device does not answer any more.

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


def unguarded(_: str) -> contextlib.AbstractContextManager[None]:
    """A guard that does not watch."""
    return contextlib.nullcontext()


def guard_for(seconds: float, write_down: Callable[[str, str], None]) -> Guard:
    """A guard that ends this process with `STUCK` when a piece of work takes too long.

    Args:
      seconds: how long it may take.
      write_down: is told the name of the work and the reason before.
    """

    def give_up(name: str) -> None:
        reason = f"took longer than {seconds:g} s"
        write_down(name, reason)
        print(
            f"error: {name or 'the work under way'} {reason}: give the same command again, which "
            "leaves that out and goes on",
            file=sys.stderr,
            flush=True,
        )
        os._exit(STUCK)

    @contextlib.contextmanager
    def guard(name: str) -> Iterator[None]:
        timer = threading.Timer(seconds, give_up, (name,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    return guard


def require_device(name: str, error: Exception) -> None:
    """Finds out whether the device still answers after an error.

    Raises:
      DeviceLostError: it does not, after the work of this name.
    """
    try:
        jax.block_until_ready(jnp.zeros(()) + 1)
    except Exception:
        raise DeviceLostError(name, reason_of(error)) from error


def reason_of(error: Exception) -> str:
    """An error in a line."""
    text = str(error)
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
