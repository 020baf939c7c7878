"""What one process compiled the others read, from a folder."""

import os
import shutil
import tempfile
import warnings

import jax
import pytest

HALF_WRITTEN = "Error reading persistent compilation cache entry"
"""How JAX begins what it says of a program that another process is writing at that moment: it
writes where others read. Who reads half of one compiles it for itself."""


def keep(config: pytest.Config) -> None:
    """In a folder of this run, or in `JAX_COMPILATION_CACHE_DIR` for the runs after it as well.

    Workers, and processes that tests start, take it from the environment. The latter say nothing of
    programs that are half written, as the tests may read what they say; of the tests themselves
    pyproject.toml says the same.
    """
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if folder is None:
        folder = tempfile.mkdtemp(prefix="sparsemlp-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    options: dict[str, str | float] = {
        "jax_compilation_cache_dir": folder,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in options.items():
        os.environ[name.upper()] = str(value)
        jax.config.update(name, value)
    said = os.environ.get("PYTHONWARNINGS", "")
    if HALF_WRITTEN not in said:
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [said, f"ignore:{HALF_WRITTEN}"]))


def ignore_half_written() -> None:
    """Where a test shows all warnings, in `warnings.catch_warnings`: all but this one."""
    warnings.filterwarnings("ignore", HALF_WRITTEN)
