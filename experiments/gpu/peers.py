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
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tuning.device_lock import device_lock
from tuning.watch import reason_of
from tuning.workers import environment_with

from gpu.points import Point, all_points, roofline_seconds, tiny_points
from sparsemlp import InputError
from sparsemlp.blocks import Block
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
        product = Product(_bsr_dense_addmm(torch), to_bsr(matrix, block), x.T, None)
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
    multiply = _matmul(torch) if is_smoke else _bsr_dense_addmm(torch)
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


class Product(NamedTuple):
    """What multiplies a matrix in BSR by x with some parameters, both, and what comes out."""

    multiply: Callable[[Any, Any, Record | None], Any]
    sparse: Any
    x: Any
    wanted: Any

    def call(self, choice: Record | None) -> Any:
        """The product with these parameters, None for PyTorch's own choice."""
        return self.multiply(self.sparse, self.x, choice)

    def reason_against(self, choice: Record | None) -> str:
        """Why the parameters are of no use; empty if the product is right.

        Bfloat16 rounds the result; TF32 the operands, in one of the two products.
        """
        try:
            off = (self.call(choice) - self.wanted).abs().max().item()
        except Exception as error:
            return reason_of(error)
        return "" if off <= 0.02 * self.wanted.abs().max().item() else f"off by {off:.3g}"


def parameters(n_rows: int, height: int) -> list[Record | None]:
    """PyTorch's own choice, None, and others: rows of x in a tile, and how deep it is pipelined.

    Args:
      n_rows: rows of x.
      height: of a block of the matrix in BSR, and of the tile that PyTorch chooses.
    """
    tiles = [tile for tile in sorted({height, 64, 128}) if n_rows % tile == 0]
    return [None] + [
        {"SPLIT_N": n_rows // tile, "GROUP_SIZE_ROW": 4, "num_stages": stages, "num_warps": warps}
        for tile, (stages, warps) in itertools.product(tiles, ((3, 4), (4, 4), (3, 8)))
    ]


def fastest(
    product: Product,
    choices: Sequence[Record | None],
    seconds: Callable[[Callable[[], Any], float, int], float],
) -> Record:
    """Times a product with the parameters that are the fastest in a first, short look.

    Args:
      product: the product.
      choices: parameters; those of no use are left out.
      seconds: measures a call: with a share of the usual repetitions, and in how many rounds.

    Returns:
      `microseconds`, `parameters`, and `own_microseconds` with PyTorch's own choice in the short
      look, None if that was of no use.

    Raises:
      ValueError: none is of use; what is told is the reason against the first.
    """
    reasons = [product.reason_against(choice) for choice in choices]
    right = [choice for choice, reason in zip(choices, reasons, strict=True) if not reason]
    if not right:
        raise ValueError(reasons[0])
    looks = [seconds(lambda c=choice: product.call(c), 0.25, 2) for choice in right]
    best = right[looks.index(min(looks))]
    own = 1e6 * looks[right.index(None)] if None in right else None
    microseconds = 1e6 * seconds(lambda: product.call(best), 1.0, 7)
    return {"microseconds": microseconds, "parameters": best, "own_microseconds": own}


def masked_weight(torch: Any, point: Point) -> Any:
    """A weight `[in, out]` with zeros in dropped blocks, drawn at random."""
    (n_in, n_out), (rows, cols) = point.shape, point.block
    n_blocks = (n_in // cols) * (n_out // rows)
    rng = np.random.default_rng(0)
    grid = np.zeros(n_blocks, np.float32)
    grid[rng.choice(n_blocks, point.layer.n_kept, replace=False)] = 1
    mask = torch.from_numpy(grid.reshape(n_in // cols, n_out // rows))
    mask = mask.repeat_interleave(cols, 0).repeat_interleave(rows, 1)
    return torch.randn(n_in, n_out) / n_in**0.5 * mask


def to_bsr(matrix: Any, block: Block) -> Any:
    """A matrix in BSR; PyTorch warns that this is in beta, once a process."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return matrix.contiguous().to_sparse_bsr(block)


def _bsr_dense_addmm(torch: Any) -> Any:
    operations = importlib.import_module("torch.sparse._triton_ops")

    def multiply(sparse: Any, dense: Any, choice: Record | None) -> Any:
        shape = (sparse.shape[0], dense.shape[1])
        zero = torch.empty(shape, device=dense.device, dtype=dense.dtype)
        return operations.bsr_dense_addmm(zero, sparse, dense, beta=0, meta=choice)

    return multiply


def _matmul(torch: Any) -> Any:
    def multiply(sparse: Any, dense: Any, choice: Record | None) -> Any:
        return torch.matmul(sparse, dense)

    return multiply


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
