"""Hardware counters of an NVIDIA GPU: traffic and cache hits by Nsight Compute, energy by NVML.

Neither has been run on a GPU yet; their outputs are read as their manuals state them.
"""

import csv
import dataclasses
import importlib
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from sparsemlp import InputError

METRICS = {
    "traffic_bytes": "dram__bytes.sum",
    "l2_sectors": "lts__t_sectors.sum",
    "l2_hits": "lts__t_sectors_lookup_hit.sum",
}
"""Nsight Compute's names of what is counted."""


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What the kernels of one step moved.

    Attributes:
      bytes: read from and written to the GPU's memory.
      hit_share: share of the second-level cache's sector requests that hit.
    """

    bytes: float
    hit_share: float


def why_no_traffic() -> str | None:
    """Why traffic cannot be counted here, or None."""
    if shutil.which("ncu") is None:
        return "Nsight Compute's `ncu` is not on the PATH: install it beside the CUDA driver"
    return None


def count_traffic(program: Sequence[str]) -> Traffic:
    """Runs a program under Nsight Compute and sums over the kernels that it marked.

    Args:
      program: the command line of a program that starts and stops the profiler.

    Raises:
      InputError: the program or the profiler failed, or counted nothing.
    """
    # What is counted does not depend on the clock, which is left alone; but it does on what earlier
    # kernels left in the caches, which Nsight would empty before each.
    command = ["ncu", "--profile-from-start", "off", "--clock-control", "none"]
    command += ["--cache-control", "none"]
    command += ["--csv", "--page", "raw"]
    command += ["--print-units", "base", "--metrics", ",".join(METRICS.values()), *program]
    # Kernels launched as a graph would be counted as one that Nsight cannot replay.
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_command_buffer="
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"XLA_FLAGS": flags}
    )
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise InputError(f"ncu ended with {done.returncode}: {' '.join(last)}")
    return read_traffic(done.stdout)


def read_traffic(text: str) -> Traffic:
    """Reads the CSV that Nsight Compute prints: a line of names, one of units, one a kernel.

    Raises:
      InputError: it has no kernel or lacks a metric.
    """
    lines = text.splitlines()
    heads = [index for index, line in enumerate(lines) if line.startswith('"ID"')]
    if not heads:
        raise InputError("ncu printed no table: no kernel ran between the profiler's marks")
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[heads[0] :]))))[1:]
    missing = [name for name in METRICS.values() if not rows or not rows[0].get(name)]
    if missing:
        raise InputError(f"ncu counted no {', '.join(missing)}: this GPU or driver hides it")

    def total(metric: str) -> float:
        return sum(float(row[METRICS[metric]].replace(",", "")) for row in rows)

    return Traffic(total("traffic_bytes"), total("l2_hits") / total("l2_sectors"))


def why_no_energy() -> str | None:
    """Why energy cannot be measured here, or None."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return "NVML's Python package is not installed: pip install nvidia-ml-py"
    try:
        nvml.nvmlInit()
        nvml.nvmlDeviceGetTotalEnergyConsumption(_device(nvml))
    except nvml.NVMLError as error:
        return f"NVML tells no energy here: {error}"
    return None


def measure_energy(steps: Callable[[int], None], seconds: float = 3.0) -> float:
    """The energy of JAX's first GPU over many steps, joules a step, idle power included.

    Args:
      steps: makes so many steps and waits for them; compiled already.
      seconds: how long to measure at least; NVML's counter moves in steps of some ten ms.
    """
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    device = _device(nvml)
    n_steps, began = 0, time.perf_counter()
    before = nvml.nvmlDeviceGetTotalEnergyConsumption(device)
    while not n_steps or time.perf_counter() - began < seconds:
        steps(10)
        n_steps += 10
    used_millijoules = nvml.nvmlDeviceGetTotalEnergyConsumption(device) - before
    return used_millijoules / 1000 / n_steps


def _device(nvml: Any) -> Any:
    """NVML's handle of the first GPU that JAX sees; NVML itself sees all of the machine."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    if first.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(first))
    return nvml.nvmlDeviceGetHandleByUUID(first)


def this_python(*arguments: str) -> list[str]:
    """The command line of a program for this interpreter."""
    return [sys.executable, *arguments]
