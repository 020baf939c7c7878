"""PyTorch's block-sparse product on the points of the GPU benchmark, in a process of its own.

    PYTHONPATH=experiments python -m gpu.peers --out DIR/peers.jsonl

times `torch.sparse._triton_ops.bsr_dense_addmm`: the forward product, from the weight `[out, in]`
in BSR, and the gradient of x, from its transpose in BSR. PyTorch has tuned parameters of this
kernel for A100s alone and takes plain ones elsewhere, so others are tried as well and the fastest
counts. The conversion to BSR is not timed. Calls are recorded as a CUDA graph and replayed, so that
Python's part does not count. PyTorch (extra `peers`) and a GPU are needed.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tuning.device_lock import device_lock
from tuning.watch import reason_of
from tuning.workers import environment_with

from gpu.bsr_products import (
    Product,
    bsr_dense_addmm,
    fastest,
    masked_weight,
    matmul,
    parameters,
    to_bsr,
)
from gpu.points import Point, all_points, roofline_seconds, tiny_points
from sparsemlp import InputError
from sparsemlp.exit_codes import exit_code
from sparsemlp.files import Record
from sparsemlp.options import cli
from sparsemlp.runs.history import History

_FEW_ROWS = 1024
"""Of x: enough for every tile, and done in no time."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Where the records go."""

    out: Path
    """File of records, a line a point; points that it holds are not measured again."""
    first: int = 0
    """How many of the points, in their order; 0 is all."""
    seconds: float = 600.0
    """When to stop."""
    smoke: bool = False
    """Try the program on the CPU, with PyTorch's own product; nothing is measured."""


def main() -> int:
    """Measures the points that the file does not hold yet."""
    return exit_code(lambda: measure_peers(cli(Options, description=__doc__)))


def measure_peers(options: Options) -> None:
    """Adds a record for each point.

    Raises:
      InputError: PyTorch is not there, or has no GPU.
    """
    caches = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    with (
        tempfile.TemporaryDirectory() as scratch,
        # Where nobody has a home, Triton finds no place for what it compiles.
        environment_with({name: str(Path(scratch) / name.lower()) for name in caches}),
    ):
        torch = load_torch(options.smoke)
        began, history = time.monotonic(), History(options.out)
        done = {record["key"] for record in history.read()}
        points = tiny_points() if options.smoke else all_points()
        lock = device_lock(is_trial=options.smoke)
        for point in points[: options.first or None]:
            if str(point) in done or not point.ratio:
                continue
            if not options.smoke:
                compile_small(torch, point)
            if time.monotonic() - began > options.seconds:
                return
            with lock():
                record = measure(torch, point, options.smoke)
            history.append(record | {"measured": not options.smoke})


def compile_small(torch: Any, point: Point) -> None:
    """Has Triton compile the kernels of a point, and keep them, with few rows of x.

    What fails here fails again where it is told.
    """
    small = dataclasses.replace(point, n_rows=_FEW_ROWS)
    weight = masked_weight(torch, small).to("cuda", getattr(torch, point.dtype))
    (n_in, n_out), (rows, cols) = point.shape, point.block
    for matrix, features, block in (
        (weight.T, n_in, (rows, cols)),
        (weight, n_out, (cols, rows)),
    ):
        x = torch.ones(_FEW_ROWS, features, device="cuda", dtype=weight.dtype)
        product = Product(bsr_dense_addmm(torch), to_bsr(matrix, block), x.T, None)
        for choice in parameters(_FEW_ROWS, block[0]):
            with contextlib.suppress(Exception):
                product.call(choice)


def load_torch(is_smoke: bool) -> Any:
    """PyTorch, with a GPU unless this tries the program only."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("PyTorch is not installed: pip install -e '.[peers]'")
    torch = importlib.import_module("torch")
    if not is_smoke and not torch.cuda.is_available():
        raise InputError(
            f"PyTorch {torch.__version__} finds no GPU: install its CUDA build, see pytorch.org"
        )
    return torch


def measure(torch: Any, point: Point, is_smoke: bool) -> Record:
    """The record of a point: microseconds of both products, checked against a dense one."""
    record: Record = {"key": str(point), "torch": torch.__version__, "phases": {}, "failed": {}}
    multiply = matmul(torch) if is_smoke else bsr_dense_addmm(torch)
    device = "cpu" if is_smoke else "cuda"
    dtype = torch.float32 if is_smoke else getattr(torch, point.dtype)
    (n_in, n_out), (rows, cols) = point.shape, point.block
    weight = masked_weight(torch, point).to(device, dtype)
    estimate = roofline_seconds(point, "forward", False, 2e12, 2e14)
    n_times = max(5, min(300, round(20e-3 / estimate)))

    def seconds(call: Callable[[], Any], share: float, rounds: int) -> float:
        if is_smoke:
            return _seconds_cpu(call)
        return _seconds_cuda(torch, call, max(2, round(share * n_times)), rounds)

    for phase, matrix, features, block in (
        ("forward", weight.T, n_in, (rows, cols)),
        ("input_gradient", weight, n_out, (cols, rows)),
    ):
        try:
            x = torch.randn(point.n_rows, features, device=device, dtype=dtype)
            product = Product(multiply, to_bsr(matrix, block), x.T, matrix @ x.T)
            choices = [None] if is_smoke else parameters(point.n_rows, block[0])
            record["phases"][phase] = fastest(product, choices, seconds)
        except Exception as error:
            record["failed"][phase] = reason_of(error)
    return record


def _seconds_cuda(torch: Any, call: Any, n_times: int, rounds: int) -> float:
    """The median seconds of a call, so many of them replayed from a graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(n_times):
            call()
    times = []
    for _ in range(rounds + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / n_times)
    return float(np.median(times[1:]))


def _seconds_cpu(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
