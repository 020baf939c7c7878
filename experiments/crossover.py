"""Finds from which ratio on the native kernels beat XLA's dense products, and writes it down.

    python experiments/crossover.py

measures the blocks of the thesis and some between, on the layers of its models, and writes the
table in which engine `auto` looks up a layer on a CPU, `pallas_kernels/cpu/crossover.json`. About
30 minutes on 2 cores that do nothing else. Options choose a part; the rest of the table stays.

Native and what else would be done take turns, each into the memory of its last result; freed memory
stays with the process. Fresh memory would cost page faults, on which dense spends more time than
native does. Time grows with the kept blocks, so the smallest ratio that pays is found by bisection.
"""

import bisect
import ctypes
import dataclasses
import datetime
import json
import math
import platform
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.crossover_phases import PAIRS, Case, Comparison, comparisons
from benchmarks.timing import describe_machine, repeated, steps_in_a_turn, take_turns
from jaxtyping import Array
from rich.console import Console

from pallas_kernels import Cpu, Phase
from pallas_kernels.cpu.crossover import PHASES, TABLE_FILE
from sparsemlp import InputError, parse_block
from sparsemlp.blocks import Block, divides, format_block, n_kept_blocks
from sparsemlp.exit_codes import exit_code
from sparsemlp.files import Record, check_writable, read_record, write_whole
from sparsemlp.options import cli, open_default
from sparsemlp.runs.environment import describe_environment

MARGIN = 0.97
"""Native pays where it takes at most this share of dense's time."""
RATIOS = tuple(tenths / 10 for tenths in range(1, 10))
_SIDES = (2, 4, 8, 16, 32, 64)
_THESIS = ((1, 1), *(block for n in _SIDES for block in ((1, n), (n, 1), (n, n))))
_BETWEEN = ((4, 8), (8, 16), (16, 32), (32, 16), (32, 64), (64, 32), (128, 128))
_TURN_SECONDS = 0.01
_ROWS, _BIG_ROWS, _BIG = (64, 8192), (64, 2048), 100_000
"""Rows of x, and those for kernels of so many weights, where more would take too long."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured, and where the table is."""

    kernel: tuple[str, ...] = ("tokens:64x64", "tokens:256x256", "64x256", "256x64", "384x1536")
    """Kernels INxOUT, after `tokens:` where tokens are contracted (axis -2)."""
    block: tuple[str, ...] = tuple(map(format_block, (*_THESIS, *_BETWEEN)))
    """Blocks ROWSxCOLS; one that does not divide a kernel is left out there."""
    rows: Annotated[
        tuple[int, ...], open_default("INT ...", f"64 8192; 64 2048 for over {_BIG} weights")
    ] = ()
    """Rows of x: images times tokens, or images times channels where tokens are contracted."""
    channels: int = 64
    """Channels of x where tokens are contracted."""
    phase: tuple[Phase, ...] = PHASES
    """Phases: product, input_gradient, kernel_gradient; mlp, straight_through_mlp (a fused pair of
    layers; the latter with the gradients of all blocks)."""
    rounds: int = 7
    """Turns of each contender, of 10 ms or more; their medians are compared."""
    out: Path = TABLE_FILE
    """The table."""


def main() -> int:
    """Measures what the command line names, one entry of the table after the other."""
    _keep_freed_memory()
    return exit_code(lambda: measure(cli(Options, description=__doc__)))


def measure(options: Options) -> None:
    """Writes the table anew after each entry.

    Raises:
      InputError: an option that cannot be measured, or there is no native library.
      SaveError: the table cannot be written.
    """
    cases = _cases(options)
    blocks = [parse_block(text) for text in options.block]
    if not any(_ratios(case, block) for case in cases for block in blocks):
        raise InputError(
            f"no --block of {', '.join(options.block) or 'none'} divides a --kernel of "
            f"{', '.join(options.kernel)} into several: name one that does"
        )
    table = _table(options.out)
    measured_now = f"{datetime.date.today()}: {describe_machine(describe_environment(), 'jaxlib')}"
    about = {
        "what": f"smallest ratio at which native takes at most {MARGIN:.0%} of the time of XLA's "
        "dense products, and straight_through_mlp of that of masked products and XLA's dW too; "
        f"null: none up to {RATIOS[-1]}, or no such phase",
        "script": "experiments/crossover.py",
        "phases": list(PHASES),
    }
    with Console(stderr=True).status("") as status:
        for case in cases:
            compared = comparisons(case)
            entry = _entry(table["entries"], case)
            done: dict[str, set[str]] = {phase: set() for phase in compared}
            for block in blocks:
                if not _ratios(case, block):
                    continue
                status.update(f"{case}, {format_block(block)}")
                found = entry["blocks"].setdefault(format_block(block), [None] * len(PHASES))
                for phase in compared.keys() & set(options.phase):
                    if _measurable(case, block, phase):
                        ratio = smallest_ratio(compared[phase], case, block, options.rounds)
                        found[PHASES.index(phase)] = ratio
                        done[phase].add(format_block(block))
            for phase, measured_blocks in done.items():
                if measured_blocks:
                    _stamp(entry, case, phase, measured_now, measured_blocks)
            write_table(options.out, {**about, "entries": table["entries"]})


def smallest_ratio(comparison: Comparison, case: Case, block: Block, rounds: int) -> float | None:
    """The smallest of `RATIOS` at which native pays; None if it never does."""
    operands = comparison.operands
    baseline = repeated(_of_one(comparison.dense), operands)
    n_steps = steps_in_a_turn(baseline, _TURN_SECONDS)
    n_blocks = _n_blocks(case, block)
    rng = np.random.default_rng(0)

    def pays(ratio: float) -> bool:
        n_kept = n_kept_blocks(n_blocks, ratio)
        kept = np.sort(rng.choice(n_blocks, n_kept, replace=False))
        given = (jnp.asarray(kept, jnp.int32), *operands)
        layer = case.layer(block, n_kept)
        contenders = {"native": repeated(_of_one(comparison.native(layer)), given)}
        if comparison.stepwise is not None:
            contenders["stepwise"] = repeated(_of_one(comparison.stepwise(layer)), given)
        steps = {name: steps_in_a_turn(run, _TURN_SECONDS) for name, run in contenders.items()}
        seconds = take_turns({"dense": baseline, **contenders}, rounds, {"dense": n_steps, **steps})
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        return medians.pop("native") <= MARGIN * min(medians.values())

    ratios = _ratios(case, block)
    if not pays(ratios[-1]):
        return None
    return ratios[bisect.bisect_left(ratios[:-1], True, key=pays)]


def write_table(path: Path, table: Record) -> None:
    """Writes the table as JSON, a block a line.

    Raises:
      SaveError: as `write_whole`.
    """
    text = json.dumps(table, indent=1)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), text)
    write_whole(path, lambda file: file.write(text.encode() + b"\n"))


def _keep_freed_memory() -> None:
    """Asks glibc, where it is the C library, to give no freed memory back to the system."""
    if platform.libc_ver()[0] == "glibc":
        trim_threshold, mmap_max = -1, -4
        libc = ctypes.CDLL(None)
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(mmap_max, 0)


def _of_one(function: Callable[..., Any]) -> Callable[[tuple[Array, ...]], Any]:
    """A function of all its operands in one."""
    return lambda operands: function(*operands)


def _ratios(case: Case, block: Block) -> list[float]:
    """Those of `RATIOS` that drop blocks, one for each number of kept ones."""
    if not divides(block, case.kernel_shape):
        return []
    n_blocks = _n_blocks(case, block)
    of_kept = {n_kept_blocks(n_blocks, ratio): ratio for ratio in reversed(RATIOS)}
    return sorted(ratio for n_kept, ratio in of_kept.items() if n_kept < n_blocks)


def _n_blocks(case: Case, block: Block) -> int:
    return math.prod(case.kernel_shape) // math.prod(block)


def _measurable(case: Case, block: Block, phase: str) -> bool:
    """Whether the block divides the layers of a phase, both of a pair."""
    in_features, out_features = case.kernel_shape
    return phase not in PAIRS or divides(block, (out_features, in_features))


def _entry(entries: list[Record], case: Case) -> Record:
    """The entry of this kernel and these rows in the table, a new one if there is none."""
    key = {"kernel": list(case.kernel_shape), "axis": case.axis, "rows": case.n_rows}
    for entry in entries:
        if key.items() <= entry.items():
            return entry
    entries.append({**key, "measured": dict.fromkeys(PHASES), "blocks": {}})
    return entries[-1]


def _stamp(entry: Record, case: Case, phase: str, now: str, measured_blocks: set[str]) -> None:
    """Says where and when a phase was measured, beside what was said if other blocks are older."""
    stamps = entry.setdefault("measured", dict.fromkeys(PHASES))
    of_phase = {text for text in entry["blocks"] if _measurable(case, parse_block(text), phase)}
    before = [] if of_phase <= measured_blocks else (stamps.get(phase) or "").split(" / ")
    stamps[phase] = " / ".join(dict.fromkeys(filter(None, [*before, now])))


def _table(path: Path) -> Record:
    """The table that is grown; an empty one if there is none.

    Raises:
      InputError: what is there is no table.
    """
    if not path.exists():
        return {"entries": []}
    table = read_record(path)
    if table is None or not isinstance(table.get("entries"), list):
        raise InputError(f"--out={path} is no table of this program: remove it, or name another")
    return table


def _cases(options: Options) -> list[Case]:
    if options.rounds < 1 or options.channels < 1 or min(options.rows, default=1) < 1:
        raise InputError("--rounds, --rows and --channels must be at least 1")
    if not options.out.absolute().parent.is_dir():
        raise InputError(f"--out={options.out} must be in a folder that exists")
    check_writable(options.out, f"--out={options.out}")
    if not options.kernel:
        raise InputError("--kernel must name at least one kernel, such as 64x256")
    cases: list[Case] = []
    for text in options.kernel:
        found = re.fullmatch(r"(tokens:)?([1-9]\d*)x([1-9]\d*)", text)
        if found is None:
            raise InputError(
                f"--kernel={text} is neither INxOUT nor tokens:INxOUT, such as 64x256: two "
                "positive integers, inputs and outputs of the layer"
            )
        kernel_shape = (int(found[2]), int(found[3]))
        usual = _BIG_ROWS if math.prod(kernel_shape) > _BIG else _ROWS
        for rows in options.rows or usual:
            if found[1] and rows % options.channels:
                raise InputError(
                    f"--channels={options.channels} does not divide --rows={rows}: along tokens, "
                    "the rows of x are images times channels"
                )
            cases.append(Case(kernel_shape, -2 if found[1] else -1, rows, options.channels))
    reason = Cpu().reason_against(cases[0].layer((1, 1), 1), jax.default_backend())
    if reason is not None:
        way_out = "" if jax.default_backend() == "cpu" else ": set JAX_PLATFORMS=cpu"
        raise InputError(f"there are no native kernels to measure: {reason}{way_out}")
    return cases


if __name__ == "__main__":
    sys.exit(main())
