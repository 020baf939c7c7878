"""The folder of a run: what lies where, and files that are either whole or not there."""

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import jax

from sparsemlp.errors import InputError
from sparsemlp.files import Record

_PACKAGES = ("sparsemlp", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


class RunFolder:
    """Paths of a run.

    Args:
      path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.mask_activity = path / "mask_activity.npz"
        self.checkpoints = path / "checkpoints"
        self.curves = path / "curves.png"
        self.masks = path / "masks.png"
        self.summary = path / "summary.json"
        self.tensorboard = path / "tensorboard"

    def create(self) -> None:
        """Makes the folder and its parents.

        Raises:
          InputError: there is something in it already, or it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            occupied = any(self.path.iterdir())
        except OSError as error:
            raise InputError(
                f"the run folder {self.path} cannot be made: {error.strerror}; choose another "
                "with --out"
            ) from error
        if occupied:
            raise InputError(
                f"the run folder {self.path} is not empty: continue that run with "
                f"--resume {self.path}, or choose another folder with --out"
            )

    def check_resumable(self) -> None:
        """Raises InputError unless a run was started in this folder."""
        if not self.config.is_file():
            raise InputError(
                f"{self.path} is no run folder: it has no {self.config.name}; --resume takes the "
                "folder that an earlier run printed at its start"
            )

    def read_environment(self) -> Record:
        """What `environment.json` says, empty if it is lost or damaged."""
        with contextlib.suppress(OSError, ValueError):
            environment = json.loads(self.environment.read_text())
            if isinstance(environment, dict):
                return environment
        return {}


def describe_environment() -> Record:
    """Versions, processor, devices and commit: what a number should be read beside."""
    devices = jax.devices()
    return {
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "backend": jax.default_backend(),
        "device": devices[0].device_kind,
        "devices": len(devices),
        "commit": _commit(),
        "command": sys.argv,
    }


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
