"""The results of the GPU benchmark as tables in Markdown."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import tyro
from tuning.ceilings import Ceilings
from tuning.device_timing import Timed

from gpu.products import latest, numbers_of, point_of
from gpu.summary import summary_rows
from sparsemlp import InputError
from sparsemlp.blocks import format_block
from sparsemlp.files import Record, read_record, write_whole
from sparsemlp.runs.history import History

_PEER = "PyTorch BSR"
TRIAL = "no measurement: a trial of the program with tiny shapes and interpreted kernels"


def print_tables(folder: Annotated[Path, tyro.conf.Positional]) -> None:
    """Prints the tables of what `gpu` measured.

    Args:
      folder: what `benchmark.py gpu --out` wrote.

    Raises:
      InputError: as `check_measured`.
    """
    check_measured(folder)
    print(write_report(folder))


def check_measured(folder: Path) -> Record:
    """What the folder says of its device.

    Raises:
      InputError: it holds no results, or those of a trial.
    """
    device = read_device(folder)
    if not device["measured"]:
        raise InputError(f"{folder} holds {TRIAL}: run benchmark.py gpu without --smoke on a GPU")
    return device


def read_device(folder: Path) -> Record:
    """The device of a folder of results.

    Raises:
      InputError: there is none.
    """
    path = folder / "device.json"
    if not path.exists():
        raise InputError(f"{folder} holds no results: python experiments/benchmark.py gpu makes it")
    if (device := read_record(path)) is None:
        raise InputError(f"{path} is damaged: restore it, or measure in another folder")
    return device


def write_report(folder: Path) -> str:
    """Writes `table.md` of what the folder holds so far, and returns its text.

    Raises:
      SaveError: as `write_whole`.
    """
    device = read_device(folder)
    environment, ceilings = device["environment"], device["ceilings"]
    heading = device["device"] if device["measured"] else TRIAL
    peaks = ", ".join(f"{v / 1e12:.3g} TFLOP/s {name}" for name, v in ceilings["flops"].items())
    lines = [
        f"# GPU benchmark: {heading}",
        "",
        f"JAX {environment['versions']['jax']}, commit {environment['commit']}; copy "
        f"{ceilings['bytes_per_second'] / 1e9:.4g} GB/s, dense product of XLA {peaks}, as measured "
        "in this job.",
        "",
        *_summary(folder, heading, device["measured"]),
        *_correctness(folder, device["measured"]),
        *_products(folder, device["measured"], Ceilings(**ceilings)),
        *_steps(folder, device["measured"]),
    ]
    text = "\n".join(lines).rstrip() + "\n"
    write_whole(folder / "table.md", lambda file: file.write(text.encode()))
    return text


def _title(text: str, is_measured: bool) -> str:
    return f"## {text}" if is_measured else f"## {text} (no measurement)"


def _head(names: str) -> Iterator[str]:
    columns = names.split(", ")
    yield _line(columns)
    yield "|" + "---|" * len(columns)


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _summary(folder: Path, device: str, is_measured: bool) -> Iterator[str]:
    rows = summary_rows(folder)
    if not rows:
        return
    yield from (_title("Summary", is_measured), "")
    yield from _head(
        "device, layer, block, ratio, rows, dtype, by, forward + backward: dense / this, "
        "Y + dX: PyTorch's BSR / this, roofline"
    )
    for row in rows:
        yield _line((device, *row))
    yield ""


def _correctness(folder: Path, is_measured: bool) -> Iterator[str]:
    records = History(folder / "correctness.jsonl").read()
    if not records:
        return
    yield from (_title("Correctness", is_measured), "")
    for name in dict.fromkeys(record["engine"] for record in records):
        own = [record for record in records if record["engine"] == name]
        wrong: dict[str, list[str]] = {}
        for record in own:
            if record["wrong"]:
                wrong.setdefault(record["wrong"], []).append(record["key"])
        n_wrong = sum(map(len, wrong.values()))
        yield f"- `{name}`: {len(own) - n_wrong} of {len(own)} products are right" + "".join(
            f"; {', '.join(keys)}: {reason}" for reason, keys in wrong.items()
        )
    yield ""


def _products(folder: Path, is_measured: bool, ceilings: Ceilings) -> Iterator[str]:
    """A row a point, phase and contender: time, speed, and how far from the roofline."""
    records = latest(History(folder / "products.jsonl").read())
    if not records:
        return
    peers = {record["key"]: record for record in History(folder / "peers.jsonl").read()}
    yield from (_title("Products", is_measured), "")
    yield (
        "Engines are given the lists of kept blocks, which a step makes once: `metadata`. In each "
        "time is a small kernel that makes a repetition wait for the one before, and a share of a "
        "turn of XLA's loop, which PyTorch's graphs have not: `loop` is both with one that only "
        "adds 1 to the bias. The roofline is the least time that global memory and arithmetic "
        "allow, product by product; what fits the second-level cache may be above 100%."
    )
    yield ""
    yield from _head(
        "layer, block, ratio, rows, dtype, phase, by, µs, dense / this, TFLOP/s, GB/s, roofline"
    )
    for record in records:
        point = point_of(record["point"])
        shape, block = "x".join(map(str, point.shape)), format_block(point.block)
        cells = (shape, block, f"{point.ratio:g}", point.n_rows, point.dtype)
        for phase, contenders in record["phases"].items():
            found = dict(contenders)
            peer = peers.get(record["key"], {}).get("phases", {}).get(phase)
            if peer is not None:
                seconds = Timed(*[peer["microseconds"] / 1e6] * 3)
                found[_PEER] = numbers_of(point, phase, _PEER, seconds, ceilings)
            for name, numbers in found.items():
                yield _line((*cells, phase, name, *_row(numbers, found)))
        failed = peers.get(record["key"], {}).get("failed", {})
        of_peer = {f"{_PEER} {phase}": reason for phase, reason in failed.items()}
        for name, reason in (record["failed"] | of_peer).items():
            yield _line((*cells, name, f"failed: {reason}", "", "", "", "", ""))
    yield ""


def _row(numbers: Record, found: Record) -> tuple[str, ...]:
    own = numbers["microseconds"]
    if "tflops" not in numbers:
        speed = f"{found['dense']['microseconds'] / own:.2f}x" if "dense" in found else ""
        return f"{own:.1f}", speed, "", "", ""
    dense = found["dense"]["microseconds"] / own if "dense" in found else None
    return (
        f"{own:.1f}",
        "" if dense is None else f"{dense:.2f}x",
        f"{numbers['tflops']:.1f}",
        f"{numbers['gigabytes_per_second']:.0f}",
        f"{numbers['share_of_roofline']:.0%}",
    )


def _steps(folder: Path, is_measured: bool) -> Iterator[str]:
    records = [json.loads(path.read_text()) for path in sorted((folder / "steps").glob("*.json"))]
    if not records:
        return
    yield from (_title("Training steps", is_measured), "")
    yield from _head(
        "model, batch, dtype, by, ms, dense / this, peak MiB, planned MiB, selection, lists"
    )
    dense = {
        (r["model"], r["dtype"], r["batch"]): r["step_ms"]
        for r in records
        if r.get("contender") == "dense" and "step_ms" in r
    }
    for record in records:
        if "step_ms" not in record:
            yield f"| {record['key']} | failed: {record['failed']} | | | | | | | | |"
            continue
        step, baseline = (
            record["step_ms"],
            dense.get((record["model"], record["dtype"], record["batch"])),
        )
        shares = [
            f"{record[name] / step:.1%}" if name in record else ""
            for name in ("selection_ms", "metadata_ms")
        ]
        cells = (
            record["model"],
            record["batch"],
            record["dtype"],
            record["contender"],
            f"{step:.2f}",
            "" if baseline is None else f"{baseline / step:.2f}x",
            _mib(record["allocator_peak_bytes"]),
            _mib(record["planned_bytes"]),
            *shares,
        )
        yield _line(cells)
    yield ""


def _mib(n_bytes: int | None) -> str:
    return "" if n_bytes is None else f"{n_bytes / 2**20:.0f}"
