"""The time of a training step on many devices, on paper: arithmetic, memory, exchange.

Data parallelism as in `parallel`: every device has all parameters and its part of the batch, and
the gradients are summed over all devices. Two ends are offered. Overlapped, the three go on at the
same time and the longest is the step. One after another, they add up. A program that reaches the
stated rates lies between: products overlap with their own memory traffic, while `exchange` sums the
gradients once all of them are there, and the optimizer waits for the sums. Ratios of two steps are
not bounded by those of their ends.

Left out are elementwise work, launches, the input pipeline, the memory traffic of the exchange
itself and of casts between dtypes; and that a batch may not fit a device, which then takes it in
parts and exchanges once.
"""

import dataclasses
import math
from typing import Literal

from sparsemlp.cost_models.hardware import Device, Link
from sparsemlp.cost_models.step_costs import StepCosts
from sparsemlp.errors import InputError, require_known

Bound = Literal["compute", "memory", "exchange: bandwidth", "exchange: latency"]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Hosts of equal devices.

    Attributes:
      device: one of them.
      dtype: arithmetic of the products, one of `hardware.DTYPES`.
      inside: from a device to the next of its host.
      between: from a device to its peer in another host; every device has such a link of its own.
      devices_per_host: how many there are in a host.
      messages: all-reduces that the gradients of a step are cut into; each pays the latency.
      dense_efficiency: share of the peak that dense products reach.
      masked_efficiency: share of the peak that products of kept blocks reach.
      memory_efficiency: share of the memory bandwidth that is reached.
      link_efficiency: share of the links' bandwidth that is reached.
    """

    device: Device
    dtype: str
    inside: Link
    between: Link
    devices_per_host: int = 8
    messages: int = 1
    dense_efficiency: float = 1.0
    masked_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    link_efficiency: float = 1.0

    def __post_init__(self) -> None:
        require_known(f"dtype {self.dtype!r}", self.dtype, self.device.flops)
        for name in ("devices_per_host", "messages"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: it must be at least 1")
        for part in ("dense", "masked", "memory", "link"):
            share = getattr(self, f"{part}_efficiency")
            if not 0 < share <= 1:
                raise InputError(
                    f"{part}_efficiency is {share:g}: it is a share of the peak, in (0, 1]"
                )

    def hosts(self, n_devices: int) -> tuple[int, int]:
        """How many hosts so many devices fill, and the devices of each that take part.

        Raises:
          InputError: there is no device, or they do not fill their hosts.
        """
        if n_devices < 1:
            raise InputError(f"{n_devices} devices train nothing: choose at least 1")
        if n_devices <= self.devices_per_host:
            return 1, n_devices
        if n_devices % self.devices_per_host:
            raise InputError(
                f"{n_devices} devices do not fill hosts of {self.devices_per_host}: choose a "
                "multiple of it, or other devices_per_host"
            )
        return n_devices // self.devices_per_host, self.devices_per_host


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Seconds that each part of a step would take alone.

    Attributes:
      compute: products.
      memory: traffic to and from a device's memory.
      bandwidth: exchange over links without latency.
      latency: hops of the exchange.
    """

    compute: float
    memory: float
    bandwidth: float = 0.0
    latency: float = 0.0

    @property
    def exchange(self) -> float:
        """The exchange of gradients."""
        return self.bandwidth + self.latency

    @property
    def overlapped(self) -> float:
        """The step when all parts go on at the same time."""
        return max(self.compute, self.memory, self.exchange)

    @property
    def serial(self) -> float:
        """The step when the parts come one after another."""
        return self.compute + self.memory + self.exchange

    @property
    def bound(self) -> Bound:
        """The longest part; of the exchange, whether bandwidth or latency is most of it."""
        if self.exchange > max(self.compute, self.memory):
            return "exchange: latency" if self.latency > self.bandwidth else "exchange: bandwidth"
        return "compute" if self.compute >= self.memory else "memory"


def step_time(costs: StepCosts, cluster: Cluster, n_devices: int) -> StepTime:
    """The time of a step on so many devices.

    Args:
      costs: what one of the devices does.
      cluster: hosts, devices, links.
      n_devices: devices that share the step.

    Raises:
      InputError: the devices do not fill their hosts.
    """
    peak = cluster.device.flops[cluster.dtype]
    dense = costs.dense_flops / (peak * cluster.dense_efficiency)
    masked = costs.masked_flops / (peak * cluster.masked_efficiency)
    memory = costs.moved_bytes / (cluster.device.memory_bandwidth * cluster.memory_efficiency)
    return StepTime(dense + masked, memory, *exchange_time(costs, cluster, n_devices))


def exchange_time(costs: StepCosts, cluster: Cluster, n_devices: int) -> tuple[float, float]:
    """Seconds of the all-reduce of the gradients: for their bytes, and for the hops.

    In three stages: the d devices of a host reduce and scatter in a ring, d - 1 hops; each sums its
    d-th part with its peers in the other hosts; the host gathers in a ring. Between H hosts a ring
    takes 2 (H - 1) hops and sends `2 (H - 1) / H` of the part, a double binary tree 2 log2 H hops
    and sends it twice (Sanders, Speck and Träff 2009); the faster is taken.
    """
    n_hosts, n_inside = cluster.hosts(n_devices)
    share = cluster.link_efficiency
    part = costs.exchanged_bytes / n_inside
    inside = 2 * (n_inside - 1) * part / (cluster.inside.bandwidth * share)
    hops_inside = 2 * (n_inside - 1) * cluster.messages * cluster.inside.latency
    if n_hosts == 1:
        return inside, hops_inside
    once = part / (cluster.between.bandwidth * share)
    hop = cluster.messages * cluster.between.latency
    ring = 2 * (n_hosts - 1) / n_hosts * once, 2 * (n_hosts - 1) * hop
    tree = 2 * once, 2 * math.ceil(math.log2(n_hosts)) * hop
    bandwidth, latency = min(ring, tree, key=sum)
    return inside + bandwidth, hops_inside + latency
