"""Runs a part of a measurement as a program of its own, with a limit, and says why it failed."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

HERE = Path(__file__).parents[1]
_ERROR = re.compile(r"(error|[\w.]+(Error|Exception|Interrupt|Exit)): ?.*")


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
    command = [sys.executable, "-m", module, *words, *(["--smoke"] if is_trial else [])]
    paths = [str(HERE), str(HERE.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = (
        os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))} | dict(variables)
    )
    environment["JAX_TRACEBACK_FILTERING"] = "off"
    if is_trial:
        environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        try:
            done = subprocess.run(
                command, env=environment, stdout=output, stderr=output, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return f"took longer than {seconds:.0f} s"
    if done.returncode == 0:
        return ""
    return error_line(log.read_text(errors="replace")) or f"exit {done.returncode}"


def error_line(text: str) -> str:
    """The line of a program's output that names the last error, or else its last line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    named = [line for line in lines if _ERROR.fullmatch(line)]
    return (named or lines or [""])[-1]
