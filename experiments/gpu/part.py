"""Runs a part of a measurement as a program of its own, with a limit, and says why it failed.

As a program, it is that part: `part.py PARENT MODULE WORDS` runs a module, and ends when its parent
does. Else a part of a program that was killed would go on and take time from the next.
"""

import contextlib
import os
import re
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

HERE = Path(__file__).parents[1]
_ERROR = re.compile(r"(error|stopped|[\w.]+(Error|Exception|Interrupt|Exit)): ?.*")


def run_part(
    module: str,
    words: Sequence[str],
    seconds: float,
    log: Path,
    *,
    is_trial: bool,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Runs a module of the experiments as a program.

    Args:
      module: its name, such as `gpu.check`.
      words: its options.
      seconds: how long it may take.
      log: file for all that it prints; its folder is made.
      is_trial: whether it is told to measure nothing; then nothing is compiled well.
      variables: of its environment, beside those of this process.

    Returns:
      Why it failed, in a line; empty if it did not.
    """
    part = [sys.executable, "-P", __file__, str(os.getpid()), module]
    command = [*part, *words, *(["--smoke"] if is_trial else [])]
    paths = [str(HERE), str(HERE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = (
        os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | dict(variables)
    )
    environment["JAX_TRACEBACK_FILTERING"] = "off"
    if is_trial:
        environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        with _parts.lock:
            if _parts.are_ended:
                raise PartEndedError(module)
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            _parts.running.add(process)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"took longer than {seconds:.0f} s"
        finally:
            process.kill()
            process.wait()
            _parts.running.discard(process)
    if _parts.are_ended:
        raise PartEndedError(module)
    if code == 0:
        return ""
    return error_line(log.read_text(errors="replace")) or f"exit {code}"


class PartEndedError(Exception):
    """A part was ended with the program, whose fault it is not."""


class _Parts:
    """Those that run, in any thread, and whether all are to end."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: set[subprocess.Popen[bytes]] = set()
        self.depth, self.are_ended = 0, False


_parts = _Parts()


@contextlib.contextmanager
def ending_parts() -> Iterator[None]:
    """Ends all parts where something goes wrong inside, so that their threads end as well."""
    with _parts.lock:
        if not _parts.depth:
            _parts.are_ended = False
        _parts.depth += 1
    try:
        yield
    except BaseException:
        with _parts.lock:
            _parts.are_ended = True
            for process in _parts.running:
                process.kill()
        raise
    finally:
        with _parts.lock:
            _parts.depth -= 1


def error_line(text: str) -> str:
    """The line of a program's output that names the last error, or else its last line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    named = [line for line in lines if _ERROR.fullmatch(line)]
    return (named or lines or [""])[-1]


def _end_with(parent: int) -> None:
    """Ends this process soon after another one is its parent: the own one has died then."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
