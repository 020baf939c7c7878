"""Orbax without its noise: what matters arrives as an exception, and in one line."""

import contextlib
import gc
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator


def system_error(error: Exception) -> OSError:
    """The error itself, what tensorstore wraps of it, or one that says it in one short line."""
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
        return OSError(int(code[1]), os.strerror(int(code[1])))
    if isinstance(error, OSError) and error.strerror:
        return error
    return OSError((str(error).strip() or type(error).__name__).splitlines()[0][:200])


def reason(error: Exception) -> str:
    """One short line, in the system's own words where it has some."""
    return (found := system_error(error)).strerror or str(found)


@contextlib.contextmanager
def quiet_orbax(n_bytes: int = 0) -> Iterator[None]:
    """Keeps orbax from printing: what matters of it arrives as an exception.

    Orbax raises at the first array that fails and closes its event loop. The others get time to
    fail, in proportion to `n_bytes`, while nobody hears their tracebacks about the closed loop. A
    process that is told to end at once, by a second ctrl-C, stays quiet until it has.
    """
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    before = [logger.disabled for logger in loggers], sys.unraisablehook
    for logger in loggers:
        logger.disabled = True
    sys.unraisablehook = lambda _: None
    is_over = False
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except Exception:
        time.sleep(0.2 + n_bytes / 2e8)
        gc.collect()
        is_over = True
        raise
    else:
        is_over = True
    finally:
        if is_over:
            flags, sys.unraisablehook = before
            for logger, disabled in zip(loggers, flags, strict=True):
                logger.disabled = disabled
