"""Processes of a test run share what they compiled, and one that is half written hurts none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from compiled_programs import HALF_WRITTEN

PROGRAM = "import jax; print(jax.jit(lambda x: x + 1)(2.0))"


@pytest.mark.skipif("JAX_COMPILATION_CACHE_DIR" not in os.environ, reason="none is kept")
@pytest.mark.parametrize("length", [0, 100])
def test_a_program_that_is_half_written_is_compiled_anew_without_a_word(tmp_path: Path, length):
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}

    def run(**changes: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            check=True,
            env=environment | changes,
        )
        assert done.stdout == "3.0\n"
        return done.stderr

    assert run() == ""
    entries = [path for path in tmp_path.iterdir() if path.name.endswith("-cache")]
    assert entries
    for entry in entries:
        os.truncate(entry, length)
    assert run() == ""
    assert HALF_WRITTEN in run(PYTHONWARNINGS="")
