"""The roofline of a GPU, from the results of its benchmark.

Each product is a point: arithmetic per byte that it has to move, against the arithmetic that it
reached; the roof is what a copy and a large dense product reached in the same job.
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from gpu.products import latest
from gpu.report import check_measured
from sparsemlp import InputError
from sparsemlp.figures import check_picture, save_as
from sparsemlp.figures.style import COLORS
from sparsemlp.files import Record
from sparsemlp.runs.history import History

_MARKERS = {"forward": "o", "input_gradient": "s", "kernel_gradient": "^"}


def draw_roofline(
    folder: Annotated[Path, tyro.conf.Positional],
    out: Path = Path("roofline.png"),
    dtype: str = "bfloat16",
) -> None:
    """Draws the roofline of what `gpu` measured.

    Args:
      folder: what `benchmark.py gpu --out` wrote.
      out: the picture, a PNG.
      dtype: whose products are shown.

    Raises:
      InputError: as `check_measured` and `roofline`, or it can be no picture.
    """
    device = check_measured(folder)
    check_picture(out)
    save_as(roofline(device, latest(History(folder / "products.jsonl").read()), dtype), out)


def roofline(device: Record, records: list[Record], dtype: str) -> Figure:
    """The products of a dtype under the roof of their device.

    Args:
      device: what the folder says of it.
      records: those of `products.jsonl`.
      dtype: `bfloat16` or `float32`.

    Raises:
      InputError: no product of this dtype was measured.
    """
    own = [record for record in records if record["point"]["dtype"] == dtype]
    if not own:
        raise InputError(f"no product in {dtype!r} was measured")
    bandwidth = device["ceilings"]["bytes_per_second"] / 1e12
    peak = device["ceilings"]["flops"][dtype] / 1e12
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for record in own:
        for phase in _MARKERS:
            for name, numbers in record["phases"].get(phase, {}).items():
                if "tflops" in numbers:
                    where = (numbers["flops_per_byte"], numbers["tflops"])
                    points.setdefault((name, phase), []).append(where)
    names = list(dict.fromkeys(name for name, _ in points))
    for (name, phase), found in points.items():
        axes.plot(
            *zip(*found, strict=True),
            _MARKERS[phase],
            color=COLORS[1 + names.index(name) % (len(COLORS) - 1)],
            markersize=4,
            label=f"{name}, {phase.replace('_', ' ')}",
        )
    if not points:
        raise InputError(f"no product in {dtype!r} has a time: choose another --dtype")
    asked = [intensity for found in points.values() for intensity, _ in found]
    last = max(4 * peak / bandwidth, 1.3 * max(asked))
    intensities = np.geomspace(0.5 * min(asked), last, 500)
    roof = np.minimum(peak, intensities * bandwidth)
    axes.plot(intensities, roof, color=COLORS[0], label="measured copy and dense product")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="operations per byte that has to be moved",
        ylabel="TFLOP/s",
        title=f"{device['device']}, {dtype}",
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.25, which="both")
    figure.legend(loc="outside right upper", frameon=False, fontsize=7)
    return figure
