"""Training steps of the GPU benchmark: which are measured, each by a program of its own."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from gpu.budget import Budget
from gpu.part import run_part
from gpu.step_models import MODELS
from gpu.verdicts import verdict_against
from sparsemlp.files import Record, read_record, write_json

_LONGEST = 240.0
"""Seconds that a step may take."""


def step_commands(
    engines: list[str], verdicts: Sequence[Record], *, is_trial: bool
) -> list[list[str]]:
    """The options of every training step, the ones that tell most first.

    Args:
      engines: their names.
      verdicts: of their comparisons with the reference; who is wrong is left out.
      is_trial: whether nothing is measured: then it is one, of the smallest model.
    """
    names = ["tiny"] if is_trial else [name for name in MODELS if name != "tiny"]
    dtypes = ["bfloat16"] if is_trial else ["bfloat16", "float32"]
    contenders = ["dense", *engines, "reference"]
    return [
        [f"--model={model}", f"--contender={contender}", f"--dtype={dtype}"]
        for dtype in dtypes
        for model in names
        for contender in (contenders[1:2] if is_trial else contenders)
        if not verdict_against(verdicts, contender, MODELS[model].block, dtype)
    ]


def in_groups(commands: Sequence[list[str]]) -> list[list[list[str]]]:
    """The commands of training steps of one model and dtype, together."""
    groups: dict[tuple[str, str], list[list[str]]] = {}
    for words in commands:
        groups.setdefault((words[0], words[2]), []).append(words)
    return list(groups.values())


def measure_step(
    folder: Path,
    words: list[str],
    budget: Budget,
    *,
    rounds: int,
    is_trial: bool,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Measures a training step in a process of its own, unless its whole record is there.

    A step is written down before its selection, which is part of the record: a process that ends
    between them is made up for by another call, unless it failed for good.

    Args:
      folder: where the records are.
      words: options of `gpu.steps`.
      budget: how much time is left; told what this took.
      rounds: turns of the timed loop.
      is_trial: whether nothing is measured.
      variables: of the environment of that process, beside those of this one.
    """
    name = "_".join(word.partition("=")[2] for word in words)
    path = folder / "steps" / f"{name}.json"
    if _is_whole(read_record(path)):
        return
    path.parent.mkdir(exist_ok=True)
    began = time.monotonic()
    words = [*words, f"--rounds={rounds}", f"--out={path}"]
    seconds = max(1.0, min(budget.left, _LONGEST))
    log = folder / "logs" / f"{name}.txt"
    failed = run_part("gpu.steps", words, seconds, log, is_trial=is_trial, variables=variables)
    budget.note("step", time.monotonic() - began)
    if failed:
        print(f"{name}: {failed}")
        is_final = not failed.startswith("took longer") or seconds == _LONGEST
        found = read_record(path)
        if is_final and found is None:
            write_json(path, {"key": name, "measured": not is_trial, "failed": failed})
        elif is_final and found is not None and not _is_whole(found):
            write_json(path, found | {"failed": {"selection": failed}})


def _is_whole(record: Record | None) -> bool:
    """Whether a record says all that there is of a step: without a mask nothing is selected."""
    return record is not None and ("failed" in record or not record.get("masked"))
