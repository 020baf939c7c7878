"""Speed-ups over dense tend to what the hardware's limit says they must."""

import dataclasses
import math

import pytest

from sparsemlp import InputError
from sparsemlp.cost_models.costs import KINDS, Shapes
from sparsemlp.cost_models.hardware import DEVICES, LINKS, Device, Link
from sparsemlp.cost_models.scaling import Cluster
from sparsemlp.cost_models.scaling_points import (
    VARIANTS,
    ScalingPoint,
    scaling_points,
    strong,
    variants_of,
    weak,
)

SHAPES = Shapes(224, 14, 3, 384, 12, 4, 1000)
MASKING = dict.fromkeys(KINDS, ((32, 32), 0.8))
H100 = Cluster(DEVICES["h100"], "bfloat16", LINKS["nvlink4"], LINKS["infiniband_ndr"])
COUNTS = tuple(2**n for n in range(11))
AT_ONCE = Link(math.inf, 0.0, "given")


def points(cluster: Cluster, variant: str, batch: int = 4096) -> list[ScalingPoint]:
    found = scaling_points(SHAPES, MASKING, cluster, COUNTS, strong(batch))
    return [point for point in found if point.variant == variant]


@pytest.mark.parametrize("variant", VARIANTS)
def test_with_infinite_bandwidth_the_speed_up_is_the_ratio_of_flops(variant):
    device = Device({"bfloat16": 1e12}, math.inf, "given")
    cluster = Cluster(device, "bfloat16", AT_ONCE, AT_ONCE)
    dense = points(cluster, "dense_model")
    for point, whole in zip(points(cluster, variant), dense, strict=True):
        assert point.time.bound == "compute"
        assert point.speed_up == pytest.approx(whole.costs.flops / point.costs.flops)
        assert point.serial_speed_up == pytest.approx(point.speed_up)


def test_without_latency_many_devices_gain_the_ratio_of_bytes():
    """The more devices share a batch the less there is to do but the exchange."""
    cluster = dataclasses.replace(
        H100,
        device=Device({"bfloat16": 1e15}, math.inf, "given"),
        inside=Link(1e9, 0.0, "given"),
        between=Link(1e9, 0.0, "given"),
    )
    masked, dense = points(cluster, "masked"), points(cluster, "dense_model")
    ratio = dense[-1].costs.exchanged_bytes / masked[-1].costs.exchanged_bytes
    assert ratio > 4
    assert masked[-1].speed_up == pytest.approx(ratio)
    assert masked[-1].time.bound == "exchange: bandwidth"
    for name in ("straight_through", "dense_backward"):
        assert points(cluster, name)[-1].speed_up == pytest.approx(1)


def test_latency_alone_leaves_nothing_to_gain():
    slow = Link(math.inf, 1.0, "given")
    cluster = dataclasses.replace(H100, inside=slow, between=slow)
    assert points(cluster, "masked")[-1].speed_up == pytest.approx(1)
    assert points(cluster, "masked")[-1].time.bound == "exchange: latency"


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_device_exchanges_nothing_and_devices_share_the_arithmetic(variant):
    found = points(H100, variant)
    assert found[0].time.exchange == 0
    for point in found:
        assert point.images * point.devices == 4096
        assert point.time.compute * point.devices == pytest.approx(found[0].time.compute)
    memory = [point.time.memory for point in found]
    assert memory == sorted(memory, reverse=True)
    exchange = [point.time.exchange for point in found]
    assert exchange == sorted(exchange)


def test_with_a_batch_for_each_device_only_the_exchange_changes():
    found = scaling_points(SHAPES, MASKING, H100, COUNTS, weak(64))
    for variant in VARIANTS:
        own = [point for point in found if point.variant == variant]
        assert len({(p.costs, p.time.compute, p.time.memory) for p in own}) == 1
        assert own[0].time.exchange < own[-1].time.exchange


def test_faster_hardware_is_never_slower():
    faster = dataclasses.replace(H100, device=DEVICES["h200"])
    for variant in VARIANTS:
        for fast, slow in zip(points(faster, variant), points(H100, variant), strict=True):
            assert fast.time.overlapped <= slow.time.overlapped
            assert fast.time.serial <= slow.time.serial


def test_the_dense_model_is_as_fast_as_itself():
    for point in points(H100, "dense_model"):
        assert point.speed_up == point.serial_speed_up == 1


def test_a_channel_mlp_that_is_not_masked_is_not_fused():
    assert "masked_fused" in variants_of(MASKING)
    assert variants_of({"XPatch": ((32, 32), 0.8)}) == [
        name for name in VARIANTS if name != "masked_fused"
    ]


def test_batches_that_do_not_fit_are_named():
    with pytest.raises(InputError, match="a batch of 100 cannot be shared out among 8 devices"):
        points(H100, "masked", batch=100)
    with pytest.raises(InputError, match="0 images a device"):
        weak(0)
