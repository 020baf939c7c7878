"""The products that the GPU benchmark times first, in a row each: the table that README has."""

from collections.abc import Mapping
from pathlib import Path

from gpu.points import N_FIRST
from gpu.products import latest, point_of
from pallas_kernels import ENGINES
from sparsemlp.blocks import format_block
from sparsemlp.files import Record
from sparsemlp.runs.history import History


def summary_rows(folder: Path) -> list[tuple[object, ...]]:
    """The fastest engine of each of the first points of a folder of measurements.

    Returns:
      Tuples of layer, block, ratio, rows, dtype, engine; how many times as fast as XLA's dense
      products its forward and backward are, and as PyTorch's BSR its Y and dX (BSR has no dW); its
      share of the roofline.
    """
    records = latest(History(folder / "products.jsonl").read())
    peers = {record["key"]: record["phases"] for record in History(folder / "peers.jsonl").read()}
    rows = (_row(record, peers.get(record["key"], {})) for record in records[:N_FIRST])
    return [row for row in rows if row is not None]


def _row(record: Record, peer: Mapping[str, Record]) -> tuple[object, ...] | None:
    """None if no engine was timed."""
    point, phases = point_of(record["point"]), record["phases"]
    both = phases.get("forward_backward", {})
    engines = [name for name in both if name in ENGINES and name != "reference"]
    if not engines or "dense" not in both:
        return None
    best = min(engines, key=lambda name: both[name]["microseconds"])
    return (
        "x".join(map(str, point.shape)),
        format_block(point.block),
        f"{point.ratio:g}",
        point.n_rows,
        point.dtype,
        best,
        f"{both['dense']['microseconds'] / both[best]['microseconds']:.2f}x",
        _against(peer, {phase: by[best] for phase, by in phases.items() if best in by}),
        f"{both[best]['share_of_roofline']:.0%}",
    )


def _against(peer: Mapping[str, Record], own: Mapping[str, Record]) -> str:
    """How many times as fast as a peer Y and dX are together; empty where a time is missing."""
    products = ("forward", "input_gradient")
    if not all(phase in times for phase in products for times in (peer, own)):
        return ""
    theirs, ours = (
        sum(times[phase]["microseconds"] for phase in products) for times in (peer, own)
    )
    return f"{theirs / ours:.2f}x"
