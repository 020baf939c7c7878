"""Numbers that the thesis prints: what a repetition is compared with.

S. Bespalov, *Reducing Global Memory Accesses in DNN Training using Structured Weight Masking*,
master's thesis, Heidelberg 2025.
"""

import dataclasses
from typing import Any, Literal

SOURCE = (
    "S. Bespalov, Reducing Global Memory Accesses in DNN Training using Structured Weight "
    "Masking, master's thesis, Heidelberg 2025"
)

Quantity = Literal["test_top1", "loaded_elements", "thesis_movement_gb"]


@dataclasses.dataclass(frozen=True)
class Published:
    """A published number and the run it belongs to.

    Attributes:
      quantity: test top-1 of the last epoch (a fraction of 1), weights that the forward passes of
        the run load, or GB (2^30 bytes) that they move by the thesis' model.
      value: the number.
      text: as it is printed.
      block: `ROWSxCOLS`, None for the dense model.
      ratio: share of blocks dropped, 0 for the dense model.
      backward: the backward pass, None where the number does not depend on it.
      bound: `above` if the thesis says only that it is exceeded.
      model: `--model` of the run.
      dataset: its data set.
    """

    quantity: Quantity
    value: float
    text: str
    block: str | None = None
    ratio: float = 0.0
    backward: str | None = None
    bound: Literal["", "above"] = ""
    model: str = "resmlp"
    dataset: str = "cifar10"


ACCURACIES = (
    Published("test_top1", 0.80, "above 80%", bound="above"),
    Published("test_top1", 0.7519, "75.19%", "32x32", 0.8, "masked"),
    Published("test_top1", 0.1000, "10.00%", "32x32", 0.8, "dense"),
)
"""The last epoch of 200. The thesis calls the backward pass `dense` unmasked."""

_IMAGENET: Any = {"model": "resmlp_imagenet", "dataset": "imagenet2012"}
IMAGENET_ACCURACIES = (
    Published("test_top1", 0.4060, "40.60%", **_IMAGENET),
    Published("test_top1", 0.1651, "16.51%", "32x32", 0.8, "masked", **_IMAGENET),
)
"""The last epoch of 90 on ImageNet, masked from the first one on."""

_BILLIONS_LOADED = {
    ("1x1", 0.1): "12.97",
    ("1x1", 0.5): "7.21",
    ("1x1", 0.8): "2.88",
    ("1x1", 0.9): "1.44",
    ("8x8", 0.1): "13.01",
    ("8x8", 0.5): "7.21",
    ("8x8", 0.8): "2.93",
    ("8x8", 0.9): "1.48",
    ("64x64", 0.1): "14.41",
    ("64x64", 0.5): "8.01",
    ("64x64", 0.8): "4.80",
    ("64x64", 0.9): "4.80",
}

LOADED_WEIGHTS = tuple(
    Published("loaded_elements", 1e9 * float(text), f"{text} billion", block, ratio)
    for (block, ratio), text in _BILLIONS_LOADED.items()
)
"""Some cells of its table, to two decimals of a billion."""

MOVEMENT = (
    Published("thesis_movement_gb", 318.0, "about 318 GB"),
    Published("thesis_movement_gb", 277.0, "about 277 GB", "32x32", 0.8),
)
"""Its two figures of memory movement; 390 steps an epoch would give 317.5 and 277.3 GB."""

PUBLISHED = (*ACCURACIES, *IMAGENET_ACCURACIES, *LOADED_WEIGHTS, *MOVEMENT)
