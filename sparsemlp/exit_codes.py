"""How a program ends: errors in one line, no traceback for what a user can mend.

Exit codes: 0 done, 1 a reader that went away (or runs of a sweep that failed), 2 a bad option, a
refused write or full memory, 3 a loss that is not finite, 4 a device that answers no more or a
process that died, of several that train together (see `lifeline`) or of those that decode images,
128 + the number of the signal after an interruption.
"""

import contextlib
import os
import sys
import warnings
from collections.abc import Callable
from typing import TextIO

from sparsemlp.errors import DeviceLostError, InputError, NotFiniteError, SaveError, WorkerError


def exit_code(program: Callable[[], int | None], *, stopped: str = "") -> int:
    """Runs a program, its warnings in one line each.

    Args:
      program: what to run; it returns its exit code, or None for 0.
      stopped: how to go on after ctrl-C has stopped it at once, if there is a way.

    Returns:
      The exit code, after an error its message was printed.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return program() or 0
    except (InputError, SaveError) as error:
        tell(f"error: {error}")
        return 2
    except NotFiniteError as error:
        tell(f"stopped: {error}")
        return 3
    except DeviceLostError as error:
        tell(f"stopped: {error}")
        return 4
    except WorkerError as error:
        tell(_joined(f"stopped: {error}", stopped))
        return 4
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        tell(_joined("stopped at once", stopped))
        return 130


def tell(line: str) -> None:
    """Prints a line to standard error; nothing happens if nobody is there to read it any more.

    A signal may have interrupted another line that is on its way there: then this one is left out.
    """
    with contextlib.suppress(OSError, RuntimeError):
        print(line, file=sys.stderr)


def _joined(told: str, more: str) -> str:
    return f"{told}; {more}" if more else told


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Prints a warning as one line."""
    tell(f"warning: {message}")
