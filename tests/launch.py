"""Starts the training program as several processes on this machine."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROGRAM = "import sys; from sparsemlp.runs.command_line import main; sys.exit(main('A test.'))"


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(devices: int = 2) -> dict[str, str]:
    """The environment of a process with so many devices of its own."""
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    }


def join_flags(port: int, count: int, index: int) -> list[str]:
    """What tells a process its place."""
    return [f"--coordinator=127.0.0.1:{port}", f"--processes={count}", f"--process={index}"]


@contextlib.contextmanager
def started(
    arguments: list[str],
    environment: Mapping[str, str],
    *,
    program: str = PROGRAM,
    flags: Any = join_flags,
    own: tuple[list[str], list[str]] = ([], []),
) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes with the same arguments and each its `own`; killed at the end if need be."""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments, *own[index], *flags(port, 2, index)],
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def ended(processes: list[subprocess.Popen[str]], timeout: float = 300) -> list[tuple[int, str]]:
    """Exit code and all output of each, in one text."""
    outputs = [process.communicate(timeout=timeout) for process in processes]
    return [
        (process.returncode, out + err)
        for process, (out, err) in zip(processes, outputs, strict=True)
    ]
