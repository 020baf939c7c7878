"""Devices and links by the numbers that their makers publish; nothing here was measured."""

import dataclasses
import math
from collections.abc import Mapping

from sparsemlp.errors import InputError

DTYPES: Mapping[str, int] = {"float32": 4, "tf32": 4, "bfloat16": 2}
"""Arithmetic of the products, and the bytes of a number in memory. `tf32` is what JAX makes of
float32 products on an NVIDIA GPU unless it is told otherwise."""


@dataclasses.dataclass(frozen=True)
class Device:
    """A device.

    Attributes:
      flops: peak FLOP/s of each of `DTYPES`, of dense products.
      memory_bandwidth: bytes/s.
      source: where the numbers are published.
    """

    flops: Mapping[str, float]
    memory_bandwidth: float
    source: str

    def __post_init__(self) -> None:
        for dtype, flops in self.flops.items():
            check_rate(f"the peak in {dtype}", flops)
        check_rate("the memory bandwidth", self.memory_bandwidth)


@dataclasses.dataclass(frozen=True)
class Link:
    """What connects one device with the next.

    Attributes:
      bandwidth: bytes/s that a device sends while it receives as many.
      latency: seconds of one hop.
      source: where the numbers are published.
    """

    bandwidth: float
    latency: float
    source: str

    def __post_init__(self) -> None:
        check_rate("the bandwidth of a link", self.bandwidth)
        if not 0 <= self.latency < math.inf:
            raise InputError(f"a latency of {self.latency:g} s is none: it must be 0 or more")


def check_rate(what: str, rate: float) -> None:
    """Raises InputError unless a rate is above 0; infinite ones are allowed."""
    if not rate > 0:
        raise InputError(f"{what} is {rate:g} per second: it must be above 0")


DEVICES: Mapping[str, Device] = {
    "a100": Device(
        {"float32": 19.5e12, "tf32": 156e12, "bfloat16": 312e12},
        2.039e12,
        "NVIDIA A100 80GB SXM, data sheet",
    ),
    "h100": Device(
        {"float32": 67e12, "tf32": 494.5e12, "bfloat16": 989.5e12},
        3.35e12,
        "NVIDIA H100 SXM, data sheet; half of what it states with 2:4 sparsity",
    ),
    "h200": Device(
        {"float32": 67e12, "tf32": 494.5e12, "bfloat16": 989.5e12},
        4.8e12,
        "NVIDIA H200 SXM, data sheet; half of what it states with 2:4 sparsity",
    ),
}
"""By name. Tensor cores in `tf32` and `bfloat16`, none in `float32`."""

_NVLINK_HOP, _NETWORK_HOP = 3.4e-6, 14e-6
"""What NCCL's cost model reckons with for a hop of a ring, protocol Simple (src/graph/tuning.cc).

That is the protocol of large messages; for small ones NCCL has others with shorter hops.
"""

LINKS: Mapping[str, Link] = {
    "nvlink3": Link(300e9, _NVLINK_HOP, "NVLink 3, A100 data sheet: 600 GB/s in both directions"),
    "nvlink4": Link(450e9, _NVLINK_HOP, "NVLink 4, H100 data sheet: 900 GB/s in both directions"),
    "infiniband_hdr": Link(25e9, _NETWORK_HOP, "InfiniBand HDR, 200 Gb/s a port"),
    "infiniband_ndr": Link(50e9, _NETWORK_HOP, "InfiniBand NDR, 400 Gb/s a port (ConnectX-7)"),
}
"""By name. Bandwidths are data sheets', latencies those of NCCL's own cost model."""
