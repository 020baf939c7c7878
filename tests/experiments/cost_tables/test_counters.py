"""Counters as their tools print them; no GPU is asked."""

import sys
import types
from pathlib import Path

import pytest
from cost_tables import counters

from sparsemlp import InputError

TABLE = """==PROF== Connected to process 1
==PROF== Profiling "gemm": 0%....50%....100% - 8 passes
"ID","Kernel Name","dram__bytes.sum","lts__t_sectors.sum","lts__t_sectors_lookup_hit.sum"
"","","byte","sector","sector"
"0","gemm","1,048,576","2,000","1,500"
"1","add","1048576.5","500","125"
"""


def test_sums_are_over_all_kernels():
    found = counters.read_traffic(TABLE)
    assert found.bytes == 2 * 1048576 + 0.5
    assert found.hit_share == (1500 + 125) / 2500


def test_no_kernel_and_a_hidden_metric_are_named():
    with pytest.raises(InputError, match="no kernel ran between"):
        counters.read_traffic("==WARNING== No kernels were profiled.\n")
    with pytest.raises(InputError, match=r"counted no dram__bytes\.sum"):
        counters.read_traffic(TABLE.replace("dram__bytes.sum", "other"))


@pytest.fixture
def profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program called ncu that prints a table and what it was asked."""
    ncu = tmp_path / "ncu"
    asked = tmp_path / "asked"
    (tmp_path / "table").write_text(TABLE)
    ncu.write_text(
        f'#!/bin/sh\necho "$XLA_FLAGS" "$@" > {asked}\n'
        f'case "$*" in *fail*) echo "no permission" >&2; exit 1;; esac\ncat {tmp_path}/table\n'
    )
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return asked


def test_the_profiler_counts_what_the_program_marks(profiler):
    assert counters.why_no_traffic() is None
    assert counters.count_traffic(["train", "--ratio=0.8"]) == counters.read_traffic(TABLE)
    asked = profiler.read_text()
    assert "--profile-from-start off" in asked
    assert "--clock-control none" in asked
    assert asked.endswith("train --ratio=0.8\n")
    assert "--xla_gpu_enable_command_buffer= " in asked
    with pytest.raises(InputError, match="ncu ended with 1: no permission"):
        counters.count_traffic(["fail"])


def test_without_tools_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "`ncu` is not on the PATH" in str(counters.why_no_traffic())
    assert "pip install nvidia-ml-py" in str(counters.why_no_energy())


def test_energy_is_the_difference_over_the_steps(monkeypatch):
    """A meter that counts 5 J a step and 7 J before."""
    made = [0]
    nvml = types.SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=lambda device: 7000 + 5000 * made[0],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)

    def steps(n: int) -> None:
        made[0] += n

    assert counters.why_no_energy() is None
    assert counters.measure_energy(steps, seconds=0.01) == 5


@pytest.mark.parametrize(
    ("visible", "device"),
    [(None, "index 0"), ("", "index 0"), ("3,1", "index 3"), ("GPU-7f", "uuid GPU-7f")],
)
def test_the_meter_is_that_of_the_first_visible_gpu(monkeypatch, visible, device):
    nvml = types.SimpleNamespace(
        nvmlDeviceGetHandleByIndex=lambda index: f"index {index}",
        nvmlDeviceGetHandleByUUID=lambda uuid: f"uuid {uuid}",
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert counters._device(nvml) == device
