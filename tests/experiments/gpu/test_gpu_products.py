"""Products are checked before they are timed, and each number of a record follows from a time."""

import json

import pytest
from gpu.points import PHASES, Point, n_bytes, n_flops
from gpu.products import measure_point, numbers_of, point_of
from tuning.candidates import plain
from tuning.ceilings import Ceilings
from tuning.device_timing import Timed

from pallas_kernels import Reference

POINT = Point((64, 64), (32, 32), 0.5, 24, "float32")
CEILINGS = Ceilings(1e12, {"float32": 1e14, "bfloat16": 1e15})


class Refuses(Reference):
    def kernel_gradient(self, x, dy, kept, layer):
        raise ValueError("no room")


def test_a_point_is_read_as_it_was_written():
    assert point_of(json.loads(json.dumps(plain(POINT)))) == POINT


def test_a_point_has_every_phase_of_every_contender_and_what_failed():
    engines = {"good": Reference(), "fails": Refuses()}
    record = measure_point(POINT, engines, CEILINGS, None, rounds=1, is_tiny=True)
    assert list(record["phases"]) == list(PHASES)
    assert set(record["phases"]["forward"]) == {
        "dense",
        "masked by XLA",
        "good",
        "fails",
        "metadata",
        "loop",
    }
    assert set(record["phases"]["kernel_gradient"]) == {"dense", "masked by XLA", "good"}
    assert set(record["failed"]) == {"fails kernel_gradient", "fails forward_backward"}
    assert all(
        numbers["microseconds"] > 0
        for found in record["phases"].values()
        for numbers in found.values()
    )


def test_a_point_that_does_not_fit_is_not_tried():
    record = measure_point(POINT, {}, CEILINGS, 1000, is_tiny=True)
    assert record["phases"] == {}
    assert "needs" in record["failed"]["all"]


def test_rates_count_the_work_that_a_contender_has():
    for name, is_dense in (("dense", True), ("masked by XLA", True), ("mosaic", False)):
        found = numbers_of(POINT, "forward", name, Timed(2e-6, 1e-6, 3e-6), CEILINGS)
        flops, n_moved = (f(POINT, "forward", is_dense) for f in (n_flops, n_bytes))
        assert found["microseconds"] == pytest.approx(2)
        assert found["tflops"] == pytest.approx(flops / 2e-6 / 1e12)
        assert found["gigabytes_per_second"] == pytest.approx(n_moved / 2e-6 / 1e9)
        roof = max(flops / 1e14, n_moved / 1e12)
        assert found["share_of_roofline"] == pytest.approx(roof / 2e-6)
