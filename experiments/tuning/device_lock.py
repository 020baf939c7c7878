"""One process at a time on the device, so that others may compile while one is timed."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

Lock = Callable[[], contextlib.AbstractContextManager[None]]
"""Makes what is held around all that runs on the device."""


def unlocked() -> contextlib.AbstractContextManager[None]:
    """The lock of a process that is alone."""
    return contextlib.nullcontext()


def device_lock(*, is_trial: bool = False) -> Lock:
    """The lock of all measuring programs of this user; a trial, which has no device, needs none.

    It opens when the process that holds it dies. It is not for threads of one process, nor to be
    held twice.
    """
    name = f"sparsemlp_device_{os.getuid()}_{os.environ.get('CUDA_VISIBLE_DEVICES', '')}.lock"
    return unlocked if is_trial else file_lock(Path(tempfile.gettempdir()) / name)


def file_lock(path: Path) -> Lock:
    """A lock of all processes that name this file."""

    @contextlib.contextmanager
    def lock() -> Iterator[None]:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    return lock
