"""What an engine may be timed at: what it computes as the reference does, in a process apart."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from gpu_check import at_work_of, check_points, comparisons
from kernel_problems import COMPARED
from part import run_part
from watch import ENDED

from pallas_kernels import Engine
from sparsemlp.blocks import Block, format_block
from sparsemlp.files import Record
from sparsemlp.runs.history import History

_LONGEST = 150.0
"""Seconds that a process may take that compares an engine with the reference."""
_MOST_PROCESSES = 3
"""How many may end early before what they did not compare counts as wrong."""


def compare_engines(folder: Path, engines: Mapping[str, Engine], *, is_trial: bool) -> list[Record]:
    """Compares engines with the reference on this device and says what is wrong.

    Args:
      folder: where the records are; what they hold is not compared again.
      engines: by name.
      is_trial: whether nothing is measured.

    Returns:
      The records of `correctness.jsonl`.
    """
    path = folder / "correctness.jsonl"
    for name, engine in engines.items():
        _compare(path, name, comparisons(name, engine, check_points(is_trial)), is_trial)
    records = History(path).read()
    for name in engines:
        own = [record for record in records if record["engine"] == name]
        wrong = [record for record in own if record["wrong"]]
        if wrong:
            print(
                f"engine {name!r}: {len(wrong)} of {len(own)} comparisons failed on this device, "
                f"and layers of their kind are not timed; {wrong[0]['key']}: {wrong[0]['wrong']}"
            )
    return records


def _compare(path: Path, name: str, wanted: Mapping[str, Record], is_trial: bool) -> None:
    """Adds what is missing of an engine's comparisons; a kernel that faults or hangs is wrong."""
    history, at_work = History(path), at_work_of(path)

    def missing() -> list[str]:
        done = {record["key"] for record in history.read()}
        return [key for key in wanted if key not in done]

    def add(key: str, reason: str) -> None:
        history.append({"key": key, **wanted[key], "wrong": reason, "measured": not is_trial})

    at_work.end()
    failed = ""
    for _ in range(_MOST_PROCESSES):
        before = missing()
        if not before:
            return
        words = [f"--engine={name}", f"--out={path}"]
        failed = run_part("gpu_check.py", words, _LONGEST, is_trial=is_trial)
        left, is_late = at_work.left(), failed.startswith("took longer")
        if left and not is_late:
            add(left[1], f"{ENDED}: {failed}")
        if is_late or missing() == before:
            break
    for key in missing():
        add(key, f"not compared: {failed}")


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
            return f"wrong on this device: {record['key']}: {record['wrong']}"
    return ""
