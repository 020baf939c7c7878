"""The comparisons with published numbers as tables: cells for a page, records for a JSON file."""

import math
from typing import Any

from sparsemlp.files import Record
from sparsemlp.reports.runs_table import digits
from sparsemlp.studies.comparison import Comparison
from sparsemlp.studies.seeds import percent

QUANTITIES = {
    "test_top1": "test top-1",
    "loaded_elements": "loaded weights",
    "thesis_movement_gb": "memory movement",
}
"""The quantities of a published number, as a reader calls them."""


def setting(comparison: Comparison) -> str:
    """Block, ratio and backward pass of a published number, in a few words."""
    published = comparison.published
    data = "" if published.dataset == "cifar10" else ", ImageNet"
    if published.block is None:
        return f"dense{data}"
    backward = f", {published.backward} backward" if published.backward else ""
    return f"{published.block} at {published.ratio:g}{backward}{data}"


def cells(comparison: Comparison) -> dict[str, Any]:
    """A comparison as a reader sees it."""
    quantity, value = comparison.published.quantity, comparison.value or 0.0
    difference = comparison.difference
    if comparison.value is None:
        text, signed = "unknown", ""
    elif quantity == "test_top1":
        text = percent(value, comparison.spread)
        signed = "" if difference is None else f"{100 * difference:+.2f} points"
    else:
        scale, unit = (1e9, "billion") if quantity == "loaded_elements" else (1.0, "GB")
        text = f"{digits(value / scale, 2)} {unit}"
        if difference is None:
            signed = ""
        else:
            share = difference / comparison.published.value
            signed = f"{difference / scale:+.3f} {unit} ({share:+.2%})"
    return {
        "quantity": QUANTITIES[quantity],
        "setting": setting(comparison),
        "published": comparison.published.text,
        "run": comparison.run,
        "value": text,
        "n_runs": comparison.n_runs,
        "difference": signed or "not given",
        "note": comparison.note,
    }


def record(comparison: Comparison) -> Record:
    """A comparison as `runs.json` has it."""
    published = comparison.published
    return {
        "quantity": published.quantity,
        "model": published.model,
        "block": published.block,
        "ratio": published.ratio,
        "backward": published.backward,
        "published": published.value,
        "bound": published.bound or None,
        "run": comparison.run or None,
        "n_runs": comparison.n_runs,
        "value": comparison.value,
        "spread": None if math.isnan(comparison.spread) else comparison.spread,
        "difference": comparison.difference,
        "note": comparison.note,
    }
