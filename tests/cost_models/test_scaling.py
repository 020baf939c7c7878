"""The time of a step: by hand where it is small, and its limits where it is not."""

import dataclasses

import pytest

from sparsemlp import InputError
from sparsemlp.cost_models.hardware import Device, Link
from sparsemlp.cost_models.scaling import Cluster, StepTime, step_time
from sparsemlp.cost_models.step_costs import StepCosts

COSTS = StepCosts(dense_flops=100, masked_flops=50, moved_bytes=3000, exchanged_bytes=80)
SMALL = Cluster(
    Device({"float32": 100.0}, 1000.0, "given"),
    "float32",
    inside=Link(10.0, 0.5, "given"),
    between=Link(5.0, 1.0, "given"),
    devices_per_host=2,
)


@pytest.mark.parametrize(
    ("devices", "bandwidth", "latency"),
    [
        (1, 0, 0),
        # Half of 80 bytes out and back at 10 a second, two hops.
        (2, 8, 1),
        # 40 bytes between 4 hosts: a ring of 6 hops, 18 s, is faster than a tree's 16 + 4.
        (8, 8 + 12, 1 + 6),
        # Between 8 hosts the ring takes 14 + 14, the tree 16 + 6.
        (16, 8 + 16, 1 + 6),
    ],
)
def test_a_small_step_by_hand(devices, bandwidth, latency):
    found = step_time(COSTS, SMALL, devices)
    assert (found.compute, found.memory) == (1.5, 3.0)
    assert (found.bandwidth, found.latency) == pytest.approx((bandwidth, latency))
    assert found.overlapped == pytest.approx(max(3.0, bandwidth + latency))
    assert found.serial == pytest.approx(4.5 + bandwidth + latency)


def test_the_exchange_grows_with_devices_and_with_messages():
    counts = [1, 2, *(2 * n for n in range(2, 40))]
    times = [step_time(COSTS, SMALL, n).exchange for n in counts]
    assert times[0] == 0
    assert times == sorted(times)
    cut = dataclasses.replace(SMALL, messages=3)
    assert step_time(COSTS, cut, 2).latency == pytest.approx(3 * step_time(COSTS, SMALL, 2).latency)
    assert step_time(COSTS, cut, 2).bandwidth == step_time(COSTS, SMALL, 2).bandwidth


@pytest.mark.parametrize(
    ("share", "part", "expected"),
    [
        ("dense_efficiency", "compute", 2.5),
        ("masked_efficiency", "compute", 2.0),
        ("memory_efficiency", "memory", 6.0),
        ("link_efficiency", "bandwidth", 16.0),
    ],
)
def test_half_of_a_peak_takes_twice_as_long(share, part, expected):
    slower = dataclasses.replace(SMALL, **{share: 0.5})
    assert getattr(step_time(COSTS, slower, 2), part) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("time", "bound"),
    [
        (StepTime(3.0, 2.0, 1.0, 1.0), "compute"),
        (StepTime(2.0, 3.0, 1.0, 1.0), "memory"),
        (StepTime(1.0, 1.0, 2.0, 1.0), "exchange: bandwidth"),
        (StepTime(1.0, 1.0, 1.0, 2.0), "exchange: latency"),
    ],
)
def test_the_longest_part_bounds_the_step(time, bound):
    assert time.bound == bound
    assert time.overlapped <= time.serial <= 3 * time.overlapped


def test_a_ring_of_many_hops_gives_way_to_a_tree_in_their_logarithm():
    many = step_time(COSTS, SMALL, 2 * 2**20)
    assert many.latency == pytest.approx(1 + 2 * 20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float8"}, "dtype 'float8' is unknown"),
        ({"devices_per_host": 0}, "devices_per_host is 0: it must be at least 1"),
        ({"messages": -1}, "messages is -1"),
        ({"link_efficiency": 1.5}, r"link_efficiency is 1.5: .* in \(0, 1\]"),
        ({"memory_efficiency": 0.0}, "memory_efficiency is 0"),
    ],
)
def test_clusters_that_cannot_be_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("devices", "message"), [(0, "choose at least 1"), (7, "7 devices do not fill hosts of 2")]
)
def test_devices_fill_their_hosts(devices, message):
    with pytest.raises(InputError, match=message):
        step_time(COSTS, SMALL, devices)
