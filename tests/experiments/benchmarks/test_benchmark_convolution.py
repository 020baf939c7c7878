"""The benchmark of a masked convolution measures every product of every case."""

import dataclasses

import pytest
from benchmarks.convolution import Convolution, measure_convolution

from sparsemlp.errors import InputError

SMALL = Convolution(
    shape=("8x16",), block=("8x8", "16x8"), ratio=(0.5,), size=4, images=2, rounds=1
)


def test_every_case_has_a_row_of_four_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    measure_convolution(SMALL)
    lines = capsys.readouterr().out.splitlines()
    for block in SMALL.block:
        (line,) = [line for line in lines if "8x16 " in line and f" {block} " in line]
        assert line.count("x ") == 4


@pytest.mark.usefixtures("interpreted")
def test_an_engine_for_gpus_is_given_its_lists(capsys: pytest.CaptureFixture[str]) -> None:
    options = dataclasses.replace(
        SMALL, shape=("16x32",), block=("32x16",), engine="triton", precision="bfloat16"
    )
    measure_convolution(options)
    printed = " ".join(capsys.readouterr().out.split())
    assert "bfloat16: dense / this; engine triton" in printed
    assert "16x32 " in printed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ratio": (1.0,)}, r"--ratio=1.0 is not in \(0, 1\)"),
        ({"ratio": (0.5, 0.05)}, r"--ratio=0.05 drops none of the 18 blocks 8x8 of 8x16"),
        ({"images": 0}, "--images=0 must be at least 1"),
        ({"engine": "mosaic"}, "engine 'mosaic' masks linear layers"),
        ({"precision": "float16"}, "--precision=float16"),
        ({"block": ("3x3",)}, "block 3x3 does not divide the kernel of --shape 8x16"),
        ({"shape": ("8",)}, "8"),
        ({"window": "0x3"}, "--window '0x3' is not HEIGHTxWIDTH"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        measure_convolution(dataclasses.replace(SMALL, **changes))
