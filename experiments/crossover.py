"""Finds from which ratio on the native kernels beat XLA's masked products, and writes it down.

    python experiments/crossover.py

measures the blocks of the thesis and some between, on the layers of its models, and writes the
table in which engine `auto` looks up a layer on a CPU, `pallas_kernels/cpu/crossover.json`. About
an hour on 2 cores that do nothing else. Options choose a part; the rest of the table stays.

Freed memory stays with the process: fresh memory would cost page faults, on which dense products
spend more time than native ones do.
"""

import ctypes
import dataclasses
import datetime
import json
import math
import platform
import re
import sys
from pathlib import Path
from typing import Annotated

import jax
from benchmarks.crossover_phases import PAIRS, Case, comparisons
from benchmarks.crossover_search import MARGIN, ratios_of, smallest_ratio
from benchmarks.timing import describe_machine
from rich.console import Console

from pallas_kernels import Cpu, Phase
from pallas_kernels.cpu.crossover import PHASES, RATIOS, TABLE_FILE
from sparsemlp import InputError, parse_block
from sparsemlp.blocks import Block, divides, format_block
from sparsemlp.exit_codes import exit_code
from sparsemlp.files import Record, check_writable, read_record, write_whole
from sparsemlp.options import cli, open_default
from sparsemlp.runs.environment import describe_environment

_SIDES = (2, 4, 8, 16, 32, 64)
_THESIS = ((1, 1), *(block for n in _SIDES for block in ((1, n), (n, 1), (n, n))))
_BETWEEN = ((4, 8), (8, 16), (16, 32), (32, 16), (32, 64), (64, 32), (128, 128))
_ROWS, _BIG_ROWS, _BIG = (64, 704, 8192), (64, 362, 2048), 100_000
"""Rows of x, and those for kernels of so many weights, where more would take too long."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What is measured, and where the table is."""

    kernel: tuple[str, ...] = ("tokens:64x64", "tokens:256x256", "64x256", "256x64", "384x1536")
    """Kernels INxOUT, after `tokens:` where tokens are contracted (axis -2)."""
    block: tuple[str, ...] = tuple(map(format_block, (*_THESIS, *_BETWEEN)))
    """Blocks ROWSxCOLS; one that does not divide a kernel is left out there."""
    rows: Annotated[
        tuple[int, ...],
        open_default("INT ...", f"64 704 8192; 64 362 2048 for over {_BIG} weights"),
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
    if not any(ratios_of(case, block) for case in cases for block in blocks):
        raise InputError(
            f"no --block of {', '.join(options.block) or 'none'} divides a --kernel of "
            f"{', '.join(options.kernel)} into several: name one that does"
        )
    _check_native(cases[0])
    table = _table(options.out)
    measured_now = f"{datetime.date.today()}: {describe_machine(describe_environment(), 'jaxlib')}"
    about = {
        "what": f"smallest ratio at which native takes at most {MARGIN:.0%} of the time of what "
        "would be done without it: XLA's masked products, and for a pair of layers the native "
        f"products of each as well; null: none up to {RATIOS[-1]}, or no such phase",
        "script": "experiments/crossover.py",
        "phases": list(PHASES),
    }
    ratios: dict[tuple[Case, Block, str], float | None] = {}
    with Console(stderr=True).status("") as status:
        for case in cases:
            compared = comparisons(case)
            entry = _entry(table["entries"], case)
            done: dict[str, set[str]] = {phase: set() for phase in compared}
            for block in blocks:
                if not ratios_of(case, block):
                    continue
                status.update(f"{case}, {format_block(block)}")
                found = entry["blocks"].setdefault(format_block(block), [None] * len(PHASES))
                for phase in compared.keys() & set(options.phase):
                    if _measurable(case, block, phase):
                        what = _what(case, block, phase)
                        if what not in ratios:
                            comparison = compared[phase]
                            ratios[what] = smallest_ratio(comparison, case, block, options.rounds)
                        found[PHASES.index(phase)] = ratios[what]
                        done[phase].add(format_block(block))
            for phase, measured_blocks in done.items():
                if measured_blocks:
                    _stamp(entry, case, phase, measured_now, measured_blocks)
            write_table(options.out, {**about, "entries": table["entries"]})


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


def _measurable(case: Case, block: Block, phase: str) -> bool:
    """Whether the block divides the layers of a phase, both of a pair."""
    in_features, out_features = case.kernel_shape
    return phase not in PAIRS or divides(block, (out_features, in_features))


def _what(case: Case, block: Block, phase: str) -> tuple[Case, Block, str]:
    """What is measured: a pair is the same whichever of its layers is named."""
    n_in, n_out = case.kernel_shape
    if phase in PAIRS and n_in > n_out:
        case = dataclasses.replace(case, kernel_shape=(n_out, n_in))
    return case, block, phase


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
    return cases


def _check_native(case: Case) -> None:
    """Raises InputError unless there are native kernels here."""
    reason = Cpu().reason_against(case.layer((1, 1), 1), jax.default_backend())
    if reason is not None:
        way_out = "" if jax.default_backend() == "cpu" else ": set JAX_PLATFORMS=cpu"
        raise InputError(f"there are no native kernels to measure: {reason}{way_out}")


if __name__ == "__main__":
    sys.exit(main())
