"""Where a number was measured, and by which code."""

import contextlib
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path

import jax

from sparsemlp.cores import usable_cores
from sparsemlp.files import Record

_PACKAGES = ("sparsemlp", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def describe_environment() -> Record:
    """Versions, processor, devices and commit: what a number should be read beside.

    Who computes on fewer than the visible devices says so in the place of `devices`. With
    `matmul_precision` "default" a GPU multiplies float32 in TF32, a TPU in bfloat16.
    """
    devices = jax.devices()
    return {
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": usable_cores(),
        "backend": jax.default_backend(),
        "device": devices[0].device_kind,
        "devices": len(devices),
        "visible_devices": len(devices),
        "processes": jax.process_count(),
        "matmul_precision": jax.config.jax_default_matmul_precision or "default",
        "commit": _commit(),
        "command": sys.argv,
    }


def _version(package: str) -> str | None:
    """The version of a package; None if it is used from a checkout without being installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _commit() -> str | None:
    """The commit of the checkout that this package is imported from, `+` if it was changed."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", here, *words], capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
