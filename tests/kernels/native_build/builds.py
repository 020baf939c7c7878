"""Builds of a small library, by a compiler that counts them."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from jax import ffi

from pallas_kernels.cpu import build

COMPILER = next(filter(None, map(shutil.which, build.COMPILERS)), None)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")

BUILD = f"""
import importlib.util, sys, types
from pathlib import Path
sys.modules["jax"] = types.SimpleNamespace(
    ffi=types.SimpleNamespace(include_dir=lambda: {ffi.include_dir()!r})
)
spec = importlib.util.spec_from_file_location("build", {build.__file__!r})
sys.modules["build"] = build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
build_library = build.build_library
"""
"""How a process of its own begins: it needs nothing of JAX, which takes seconds, but a folder."""

HALF = 'for word; do case $word in */kernels-*) echo half > "$word";; esac; done'
"""What a compiler does that ends before its time."""


class Compiler:
    """The system's compiler as a script that counts its compilations, set as CXX.

    It says `version`, refuses the flags in `refused`, and runs `before` ahead of a compilation.
    """

    def __init__(self, folder: Path):
        self.log, self.path = folder / "compilations", folder / "counting-c++"
        self.log.touch()
        self.say()

    def say(self, version: str = "1.0", refused: str = "@none@", before: str = "true") -> None:
        script = f"""#!/bin/sh
case "$*" in --version) echo {version}; exit;; *{refused}*) exit 1;; esac
case "$*" in *-shared*) echo "$*" >> {self.log}; {before};; esac
exec {COMPILER} "$@"
"""
        self.path.write_text(script)
        self.path.chmod(0o755)

    @property
    def compilations(self) -> list[str]:
        return self.log.read_text().splitlines()


def value(library: Path) -> int:
    return ctypes.CDLL(str(library)).value()


def start(source: Path, cache: Path, before: str = "", **environment: str) -> subprocess.Popen[str]:
    """A process that builds, and says where the library is and what it computes."""
    program = (
        f"{BUILD}{before}\nimport ctypes\n"
        f"path = build_library(Path({str(source)!r}), cache_dir=Path({str(cache)!r}))\n"
        "print(path, ctypes.CDLL(str(path)).value())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition, what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.02)


def assert_temporary(library: Path, cache: Path) -> None:
    assert value(library) == 42
    assert library.is_relative_to(tempfile.gettempdir())
    assert not library.is_relative_to(cache)
