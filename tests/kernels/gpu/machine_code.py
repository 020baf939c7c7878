"""Compiles kernels to the machine code of GPUs that are not there, and reads what came out.

Run as a program, in a process of its own: `machine_code.py FOLDER sm_80` compiles every case for
this GPU and writes `FOLDER/found.json`. JAX finds the assembler through `CUDA_ROOT`, where a
stand-in hands its input to NVIDIA's `ptxas` with `-v` and keeps both input and report. Mosaic has
an assembler of its own, and prints the same.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ARCHITECTURES = ("sm_80", "sm_90a")
SMALL = "sm_86"
"""GPUs whose programs have the least shared memory, 99 KB: for what takes the most."""
PACKAGES = ("jax_cuda13_plugin", "nvidia.cu13")

_PTXAS = """#!/bin/sh
case "$*" in *--version*) exec "{real}" "$@" ;; esac
kept=$(mktemp "{folder}/XXXXXX") && cp "$1" "$kept.ptx"
"{real}" -v "$@" 2> "$kept.log"
status=$?
cat "$kept.log" >&2
exit $status
"""

# XLA's description of a GPU; what it reads for the choice of kernels is the published data sheet's.
_TARGET = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared} shared_memory_per_block_optin: {shared_optin}
  threads_per_core_limit: 2048 core_count: {cores} fpus_per_core: {fpus}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: {cache} clock_rate_ghz: 1.5
  device_memory_size: 25000000000
  cuda_compute_capability {{ {capability} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation" platform_version: "compute capability"
  device_address_bits: 64 name: "{name}" driver_version: "13.0.0" runtime_version: "13.0.0"
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{name}"
"""
TARGETS = {
    "sm_80": _TARGET.format(
        name="NVIDIA A30",
        capability="major: 8 minor: 0",
        cores=56,
        fpus=64,
        shared=167936,
        shared_optin=166912,
        bandwidth=933_000_000_000,
        cache=24 << 20,
    ),
    SMALL: _TARGET.format(
        name="NVIDIA A10",
        capability="major: 8 minor: 6",
        cores=72,
        fpus=128,
        shared=102400,
        shared_optin=101376,
        bandwidth=600_000_000_000,
        cache=6 << 20,
    ),
    "sm_90a": _TARGET.format(
        name="NVIDIA H200",
        capability="major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES",
        cores=132,
        fpus=128,
        shared=233472,
        shared_optin=232448,
        bandwidth=4_800_000_000_000,
        cache=50 << 20,
    ),
}


def missing() -> str | None:
    """What has to be installed to compile for a GPU; None if nothing has."""
    for package in PACKAGES:
        parent = package.partition(".")[0]
        if importlib.util.find_spec(parent) is None or importlib.util.find_spec(package) is None:
            return f"{package} is not installed: pip install -e '.[aot]'"
    return None


def compile_all(folder: Path) -> dict[str, dict[str, Any]]:
    """Compiles every case, in a new process for each GPU.

    Args:
      folder: an empty folder to work in.

    Returns:
      By `case architecture`: `registers`, `spills` (bytes), how many `wgmma`, `mma`, `cp.async` and
      `ldmatrix` instructions its kernel has, and `serialised`: whether wgmma waits for itself.
    """
    found = {}
    # Mosaic looks once for what assembles its first kernel: each GPU has a process of its own.
    for architecture in TARGETS:
        own = folder / architecture
        done = subprocess.run(
            [sys.executable, str(HERE / "machine_code.py"), str(own), architecture],
            env=os.environ | _assembler(own),
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found |= json.loads((own / "found.json").read_text())
    return found


def _assembler(folder: Path) -> dict[str, str]:
    """The environment of a process whose assembler leaves its reports in `FOLDER/reports`."""
    spec = importlib.util.find_spec("nvidia.cu13")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    real = Path(next(iter(spec.submodule_search_locations)))
    root, reports = folder / "cuda", folder / "reports"
    (root / "bin").mkdir(parents=True)
    reports.mkdir()
    for part in real.iterdir():
        if part.name != "bin":
            (root / part.name).symlink_to(part)
    stand_in = root / "bin" / "ptxas"
    stand_in.write_text(_PTXAS.format(real=real / "bin" / "ptxas", folder=reports))
    stand_in.chmod(0o755)
    return {
        "CUDA_ROOT": str(root),
        "MOSAIC_GPU_DUMP_PTX": "1",
        "MOSAIC_GPU_DUMP_PTXAS": "1",
        "JAX_ENABLE_COMPILATION_CACHE": "0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }


def _main(folder: Path, architecture: str) -> None:
    import jax
    from case_lists import IN_FULL, LARGEST, MANY, MANY_OF_AMPERE, MANY_OF_MOSAIC
    from cut_cases import IN_TABLES, SAMPLED, SAMPLED_OF_MOSAIC
    from jax.experimental import topologies
    from jax.sharding import NamedSharding, PartitionSpec

    topology = topologies.get_topology_desc(
        platform="cuda", target_config=TARGETS[architecture], topology="1x1x1"
    )
    mesh = topologies.make_mesh(topology, (1,), ("x",))
    whole = NamedSharding(mesh, PartitionSpec())
    mosaic_target()._infer_arch = lambda: (8, 0) if architecture == "sm_80" else (9, 0)
    cases = {
        SMALL: LARGEST,
        "sm_80": [*MANY, *IN_FULL, *MANY_OF_AMPERE],
        "sm_90a": [*MANY, *IN_FULL, *MANY_OF_MOSAIC, *SAMPLED_OF_MOSAIC],
    }
    for own in (IN_TABLES, SAMPLED):
        for gpu, some in own.items():
            cases[gpu] += some
    found = {}
    # Equal programs, as one that a table cuts as the heuristic does, are compiled once: Mosaic
    # prints no report of the second.
    same: dict[str, str] = {}
    for case in cases[architecture]:
        operands = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=whole), case.operands
        )
        name = f"{case} {architecture}"
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            lowered = jax.jit(case.traced()).lower(*operands)
            first = same.setdefault(lowered.as_text(), name)
            if first in found:
                found[name] = found[first]
                continue
            printed = folder / "printed"
            with _printing_to(printed):
                lowered.compile()
        found[name] = _report(_programs(folder, printed), case.kernel, architecture)
        print(name, found[name], flush=True)
    (folder / "found.json").write_text(json.dumps(found))


def mosaic_target() -> Any:
    """The module whose `_infer_arch` tells Mosaic its GPU: without one it takes a Hopper for it."""
    from jax.experimental.mosaic.gpu import core, utils

    return utils if hasattr(utils, "_infer_arch") else core


@contextlib.contextmanager
def _printing_to(file: Path) -> Iterator[None]:
    """Sends to a file what this process prints, libraries in C as well."""
    sys.stdout.flush()
    own = os.dup(1)
    with file.open("w") as target:
        os.dup2(target.fileno(), 1)
        try:
            yield
        finally:
            ctypes.CDLL(None).fflush(None)
            os.dup2(own, 1)
            os.close(own)


def _programs(folder: Path, printed: Path) -> list[tuple[str, str]]:
    """Takes the programs of a computation, each with what its assembler said."""
    # What was printed of each begins with the compiler's name.
    programs = [(part, part) for part in printed.read_text().split("// Generated by LLVM")]
    for program in (folder / "reports").glob("*.ptx"):
        log = program.with_suffix(".log")
        programs.append((program.read_text(), log.read_text()))
        program.unlink()
        log.unlink()
    return programs


def _report(programs: list[tuple[str, str]], kernel: str, architecture: str) -> dict[str, Any]:
    """What the assembler said of one kernel among the programs of a computation."""
    entry = re.compile(rf"\.entry {kernel}(_mosaic_gpu_kernel)?\b")
    ((text, log),) = [program for program in programs if entry.search(program[0])]
    assert re.search(rf"Compiling entry function '{kernel}", log)
    assert re.search(rf"\.target {architecture}\b", text)
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    assert registers is not None
    assert spills
    _assert_registers_suffice(text, int(registers[1]))
    return {
        "registers": int(registers[1]),
        "spills": sum(map(int, spills)),
        "wgmma": text.count("wgmma.mma_async"),
        "mma": text.count("mma.sync"),
        "cp.async": len(re.findall(r"cp\.async\.c[ag]", text)),
        "ldmatrix": text.count("ldmatrix.sync"),
        "serialised": "wgmma.mma_async instructions are serialized" in log,
    }


def _assert_registers_suffice(program: str, launched: int) -> None:
    """What warpgroups ask for later is there: a program has no more than it was launched with."""
    asked = {kind: int(n) for kind, n in re.findall(r"setmaxnreg\.(inc|dec)\S* (\d+)", program)}
    if not asked:
        return
    (n_threads,) = (int(n) for n in re.findall(r"\.maxntid (\d+)", program))
    n_compute = n_threads // 128 - 1
    needed = n_compute * asked["inc"] + asked["dec"]
    assert needed <= launched * (n_compute + 1), (asked, launched, n_threads)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])
