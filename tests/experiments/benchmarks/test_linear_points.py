"""The options of the linear benchmark become rows of its table, or one line that says why not."""

import dataclasses
import math
from pathlib import Path

import pytest
from benchmarks.linear_points import Linear, choose_points

from sparsemlp import InputError

SMALL = Linear(shape=("8x12",), block=("3x4",), ratio=(0.5,))


def test_without_options_the_table_is_the_published_one() -> None:
    points = [str(point) for point in choose_points(Linear())]
    assert points == [
        f"{shape}, 32x32 at {ratio}"
        for shape in ("64x256", "384x1536", "768x3072")
        for ratio in (0.5, 0.8, 0.9)
    ] + ["384x1536, 16x16 at 0.8", "384x1536, 64x64 at 0.8"]


def test_what_is_given_is_combined_and_the_rest_is_one_value() -> None:
    points = choose_points(Linear(shape=("64x32", "32x64"), ratio=(0.5, 0.75)))
    assert [str(point) for point in points] == [
        "64x32, 32x32 at 0.5",
        "64x32, 32x32 at 0.75",
        "32x64, 32x32 at 0.5",
        "32x64, 32x32 at 0.75",
    ]


def test_a_shape_is_in_by_out_and_a_block_rows_by_cols() -> None:
    (point,) = choose_points(SMALL)
    assert point.layer.kernel_shape == (8, 12)
    assert point.layer.block == (3, 4)
    assert point.layer.n_kept == math.ceil(2 * 4 * 0.5)
    assert point.layer.axis == -1
    (point,) = choose_points(dataclasses.replace(SMALL, tokens=True, rows=12, channels=3))
    assert point.layer.axis == -2


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"shape": ("8-12",)}, "--shape '8-12'"),
        ({"shape": ("0x12",)}, "--shape '0x12'"),
        ({"shape": ("8x13",)}, "--shape=8x13"),
        ({"block": ("3",)}, "block '3'"),
        ({"ratio": (0.0,)}, "--ratio=0 drops none of the 8 blocks"),
        ({"ratio": (0.1,)}, "--ratio=0.1 drops none of the 8 blocks"),
        ({"ratio": (1.0,)}, "1.0"),
        ({"ratio": (-0.5,)}, "-0.5"),
        ({"engine": "warp"}, "'warp'"),
        ({"precision": "float8"}, "--precision=float8"),
        ({"rounds": 0}, "--rounds=0"),
        ({"rows": 0}, "--rows=0"),
        ({"tokens": True, "rows": 12, "channels": 5}, "--channels=5"),
        ({"tokens": True, "rows": 12, "channels": 0}, "--channels=0"),
        ({"out": Path("numbers.txt")}, "--out=numbers.txt"),
        ({"out": Path("nowhere/numbers.json")}, "--out=nowhere"),
        ({"out": Path(f"{250 * 'n'}.json")}, "n.json cannot be written"),
    ],
)
def test_options_that_measure_nothing_are_refused(change: dict, named: str) -> None:
    with pytest.raises(InputError, match=named) as refused:
        choose_points(dataclasses.replace(SMALL, **change))
    assert "\n" not in str(refused.value)
