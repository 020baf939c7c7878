"""A training step on more and more devices, dense and with each backward pass."""

import dataclasses
from collections.abc import Callable, Sequence

from sparsemlp.cost_models.costs import Masking, Run, Shapes
from sparsemlp.cost_models.hardware import DTYPES
from sparsemlp.cost_models.scaling import Cluster, StepTime, step_time
from sparsemlp.cost_models.step_costs import StepCosts, step_costs
from sparsemlp.errors import InputError
from sparsemlp.rules import Backward


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way to train the same model.

    Attributes:
      masked: whether there are masks.
      backward: what the backward pass does with them.
      fused: whether the channel MLP is one kernel.
    """

    masked: bool
    backward: Backward = "masked"
    fused: bool = False


VARIANTS = {
    "dense_model": Variant(masked=False),
    "masked_fused": Variant(masked=True, fused=True),
    "masked": Variant(masked=True),
    "straight_through": Variant(masked=True, backward="straight_through"),
    "dense_backward": Variant(masked=True, backward="dense"),
}
"""By name, the one that the others are compared with first."""


@dataclasses.dataclass(frozen=True)
class ScalingPoint:
    """One variant on one number of devices.

    Attributes:
      variant: a name in `VARIANTS`.
      devices: devices that share the step.
      images: images of a step on one device.
      costs: what one device does.
      time: seconds of its parts.
      dense_time: the same of the dense model on as many devices.
    """

    variant: str
    devices: int
    images: int
    costs: StepCosts
    time: StepTime
    dense_time: StepTime

    @property
    def speed_up(self) -> float:
        """Over dense, all parts of both steps overlapped."""
        return self.dense_time.overlapped / self.time.overlapped

    @property
    def serial_speed_up(self) -> float:
        """Over dense, the parts of both steps one after another."""
        return self.dense_time.serial / self.time.serial


def variants_of(masking: Masking) -> list[str]:
    """The variants that a masking allows: a channel MLP is fused where both layers are masked."""
    fuses = {"XChannel1", "XChannel2"} <= set(masking)
    return [name for name, variant in VARIANTS.items() if fuses or not variant.fused]


def scaling_points(
    shapes: Shapes,
    masking: Masking,
    cluster: Cluster,
    devices: Sequence[int],
    images: Callable[[int], int],
    line_bytes: int = 128,
) -> list[ScalingPoint]:
    """All variants on all numbers of devices.

    Args:
      shapes: the sizes of the model.
      masking: the masked layer kinds.
      cluster: hosts, devices, links.
      devices: numbers of devices.
      images: images of a step on one of so many devices: `strong`, `weak`.
      line_bytes: bytes of a cache line.

    Raises:
      InputError: devices do not divide the batch or fill their hosts, or a block does not fit.
    """
    found: list[ScalingPoint] = []
    for n_devices in devices:
        run = Run(images(n_devices), 1, 1, DTYPES[cluster.dtype], line_bytes)
        dense: StepTime | None = None
        for name in variants_of(masking):
            variant = VARIANTS[name]
            rules = masking if variant.masked else {}
            costs = step_costs(shapes, rules, variant.backward, run, fused=variant.fused)
            time = step_time(costs, cluster, n_devices)
            dense = time if dense is None else dense
            found.append(ScalingPoint(name, n_devices, run.batch_size, costs, time, dense))
    return found


def strong(batch_size: int) -> Callable[[int], int]:
    """Images of one device when all share one batch; InputError where they do not divide it."""

    def images(n_devices: int) -> int:
        if batch_size < 1 or n_devices < 1 or batch_size % n_devices:
            raise InputError(
                f"a batch of {batch_size} cannot be shared out among {n_devices} devices: choose "
                "another batch size, or other devices"
            )
        return batch_size // n_devices

    return images


def weak(images_per_device: int) -> Callable[[int], int]:
    """Images of one device when each has as many.

    Raises:
      InputError: that is none.
    """
    if images_per_device < 1:
        raise InputError(f"{images_per_device} images a device are none: choose at least 1")
    return lambda n_devices: images_per_device
