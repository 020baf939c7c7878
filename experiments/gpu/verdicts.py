"""What an engine may be timed at: what it computes as the reference does, in a process apart."""

import concurrent.futures
import os
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tuning.kernel_problems import COMPARED

from gpu.check import at_work_of, check_points, comparisons, share_of, writing
from gpu.part import ending_parts, run_part
from pallas_kernels import Engine
from sparsemlp.blocks import Block, format_block
from sparsemlp.files import Record
from sparsemlp.runs.history import History

NOT_COMPARED = "not compared"
"""In the reason of a comparison that the next call makes."""
_MOST_PROCESSES = 8
"""How many may be ended by a kernel before the rest is left to the next call."""


def compare_engines(
    folder: Path,
    engines: Mapping[str, Engine],
    seconds: float,
    *,
    is_trial: bool,
    n_workers: int = 1,
) -> list[Record]:
    """Compares engines with the reference on this device, all at once, and says what is wrong.

    Args:
      folder: where the records are; what they hold is not compared again.
      engines: by name.
      seconds: how long all of it may take.
      is_trial: whether nothing is measured.
      n_workers: about how many processes; of each engine at least one.

    Returns:
      The records of `correctness.jsonl`, and one for each comparison that was not made, which the
      next call makes.
    """
    path, ends = folder / "correctness.jsonl", time.monotonic() + seconds
    path.parent.mkdir(parents=True, exist_ok=True)
    records: list[Record] = []
    # The kernels of `mosaic` take the longest to compile.
    weights = {name: 2 if name == "mosaic" else 1 for name in engines}
    shares = {
        name: max(1, n_workers * weight // sum(weights.values()))
        for name, weight in weights.items()
    }
    asked = []
    for name, engine in engines.items():
        known = comparisons(name, engine, check_points(is_trial))
        for share in range(shares[name]):
            own = share_of(known, share, shares[name])
            asked.append((name, share, shares[name], {key: known[key] for key in own}))

    def compare(one: tuple[str, int, int, dict[str, Record]]) -> list[Record]:
        name, share, shares, wanted = one
        left = ends - time.monotonic()
        return _compare(path, name, share, shares, wanted, Path(compiled), left, is_trial)

    with (
        tempfile.TemporaryDirectory() as compiled,
        concurrent.futures.ThreadPoolExecutor(max(1, len(asked))) as pool,
        ending_parts(),
    ):
        for late in pool.map(compare, asked):
            records += late
    records = [*History(path).read(), *records]
    for name in engines:
        own = [record for record in records if record["engine"] == name]
        wrong = [record for record in own if record["wrong"]]
        if wrong:
            print(
                f"engine {name!r}: {len(wrong)} of {len(own)} comparisons failed on this device "
                "or were not made, and layers of their kind are not timed; "
                f"{wrong[0]['key']}: {wrong[0]['wrong']}"
            )
    return records


def _compare(
    path: Path,
    name: str,
    share: int,
    shares: int,
    wanted: Mapping[str, Record],
    compiled: Path,
    seconds: float,
    is_trial: bool,
) -> list[Record]:
    """Adds what is missing of a share of comparisons; a kernel that faults or hangs is wrong.

    Returns:
      Records of those that were not made, which are not written.
    """
    ends = time.monotonic() + seconds
    history, at_work = History(path), at_work_of(path, name, share)

    def missing() -> list[str]:
        done = {record["key"] for record in history.read()}
        return [key for key in wanted if key not in done]

    def record(key: str, reason: str) -> Record:
        return {"key": key, **wanted[key], "wrong": reason, "measured": not is_trial}

    at_work.end()
    failed = "no time was left"
    for count in range(_MOST_PROCESSES):
        before, left = missing(), ends - time.monotonic()
        if not before or left <= 0:
            break
        failed = run_part(
            "gpu.check",
            [f"--engine={name}", f"--out={path}", f"--share={share}", f"--shares={shares}"],
            left,
            path.with_name("logs") / f"check_{name}_{share}_{count}.txt",
            is_trial=is_trial,
            variables=_quick(compiled),
        )
        interrupted, is_late = at_work.left(), failed.startswith("took longer")
        if interrupted and not is_late:
            with writing(path)():
                history.append(record(interrupted[1], f"ended the process while it ran: {failed}"))
        if is_late or missing() == before:
            break
    return [record(key, f"{NOT_COMPARED}: {failed}") for key in missing()]


def _quick(compiled: Path) -> dict[str, str]:
    """Variables with which programs are compiled sooner, and each of XLA's once for all engines."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {
        "XLA_FLAGS": f"{flags} --xla_gpu_autotune_level=0".strip(),
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def verdict_against(
    records: Sequence[Record],
    engine: str,
    block: Block,
    dtype: str,
    kernels: Collection[str] = COMPARED,
) -> str:
    """Why an engine is not timed on layers of a block and a dtype; empty if it is.

    A kernel that is wrong on one layer is not trusted on others of the same block and dtype.

    Args:
      records: of the comparisons; the last one of a key counts.
      engine: its name.
      block: of the mask.
      dtype: of the operands.
      kernels: those that would be timed.
    """
    asked = (engine, format_block(block), dtype)
    for record in {record["key"]: record for record in records}.values():
        own = (record["engine"], record["block"], record["dtype"])
        if record["wrong"] and own == asked and record["kernel"] in kernels:
            reason = f"{record['key']}: {record['wrong']}"
            is_open = record["wrong"].startswith(NOT_COMPARED)
            return reason if is_open else f"wrong on this device: {reason}"
    return ""
