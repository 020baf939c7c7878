"""The points are those of the issue, the most telling first, with the work that they need."""

import dataclasses
import itertools

import pytest
from gpu.points import (
    PHASES,
    Point,
    all_points,
    engine_takes,
    memory_bytes,
    n_bytes,
    n_flops,
    roofline_seconds,
    tiny_points,
)

from pallas_kernels import Triton

POINT = Point((384, 1536), (32, 32), 0.8, 8192, "bfloat16")


def test_every_combination_is_a_point_and_each_once():
    points = all_points()
    sides, ratios = (32, 64, 128), (0.5, 0.8, 0.9)
    shapes = ((384, 1536), (768, 3072), (1024, 4096), (4096, 16384))
    masked = {
        Point(shape, (side, side), ratio, n_rows, dtype)
        for shape, side, ratio, n_rows, dtype in itertools.product(
            shapes, sides, ratios, (8192, 32768), ("bfloat16", "float32")
        )
    }
    assert {point for point in points if point.ratio} == masked
    assert len(points) == len(set(points)) == len(set(map(str, points)))
    assert len([point for point in points if not point.ratio]) == len(shapes) * 4


def test_the_first_points_are_bfloat16_at_the_ratio_of_the_thesis():
    first = all_points()[:12]
    assert {(p.ratio, p.n_rows, p.dtype) for p in first} == {(0.8, 8192, "bfloat16")}
    assert len({(p.shape, p.block) for p in first}) == 12


def test_arithmetic_and_bytes_of_a_product():
    assert n_flops(POINT, "forward", True) == 2 * 8192 * 384 * 1536
    kept = POINT.layer.n_kept * 32 * 32
    assert n_flops(POINT, "forward", False) == 2 * 8192 * kept
    assert n_flops(POINT, "forward_backward", False) == 6 * 8192 * kept
    assert n_bytes(POINT, "forward", True) == 2 * (8192 * (384 + 1536) + 384 * 1536)
    single = [n_bytes(POINT, phase, False) for phase in PHASES if phase != "forward_backward"]
    assert n_bytes(POINT, "forward_backward", False) == pytest.approx(sum(single), rel=1e-6)


def test_the_roofline_is_the_slower_of_memory_and_arithmetic():
    by_memory = roofline_seconds(POINT, "forward", True, 1e12, 1e30)
    assert by_memory == n_bytes(POINT, "forward", True) / 1e12
    by_arithmetic = roofline_seconds(POINT, "forward", True, 1e30, 1e15)
    assert by_arithmetic == n_flops(POINT, "forward", True) / 1e15
    whole = roofline_seconds(POINT, "forward_backward", False, 1e12, 1e14)
    parts = [roofline_seconds(POINT, phase, False, 1e12, 1e14) for phase in PHASES[1:]]
    assert whole == pytest.approx(sum(parts))


def test_memory_grows_with_contenders_and_holds_the_operands():
    x_and_y = 2 * 8192 * (384 + 1536)
    assert memory_bytes(POINT, 3) > memory_bytes(POINT, 2) > 2 * x_and_y
    wide = dataclasses.replace(POINT, dtype="float32")
    assert memory_bytes(wide, 2) > memory_bytes(POINT, 2)


def test_engines_take_all_points_but_those_that_they_name():
    assert all(engine_takes(point, Triton()) is None for point in (*all_points(), *tiny_points()))
    odd = dataclasses.replace(POINT, block=(48, 48))
    assert engine_takes(odd, Triton()) is not None
    assert "divide" in str(engine_takes(dataclasses.replace(POINT, block=(40, 40)), Triton()))
