"""Published devices and links are whole and in order; numbers that cannot be are refused."""

import math

import pytest

from sparsemlp import InputError
from sparsemlp.cost_models.hardware import DEVICES, DTYPES, LINKS, Device, Link


def test_every_device_and_link_names_its_source():
    for device in DEVICES.values():
        assert device.source
        assert list(device.flops) == list(DTYPES)
        # Narrower numbers are never slower.
        assert list(device.flops.values()) == sorted(device.flops.values())
    assert all(link.source for link in LINKS.values())
    assert LINKS["nvlink4"].bandwidth == 9 * LINKS["infiniband_ndr"].bandwidth


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_rates_are_above_zero(rate):
    with pytest.raises(InputError, match="must be above 0"):
        Device({"float32": rate}, 1.0, "given")
    with pytest.raises(InputError, match="must be above 0"):
        Device({"float32": 1.0}, rate, "given")
    with pytest.raises(InputError, match="must be above 0"):
        Link(rate, 0.0, "given")


@pytest.mark.parametrize("latency", [-1e-6, math.inf, math.nan])
def test_latencies_are_zero_or_more(latency):
    with pytest.raises(InputError, match="it must be 0 or more"):
        Link(1.0, latency, "given")
