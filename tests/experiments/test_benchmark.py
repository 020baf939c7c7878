"""The command line of the benchmarks: what it offers, and one line for what it refuses."""

import sys

import benchmark
import pytest


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments])
    return benchmark.main()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["step", "--ratio=0"], "--ratio=0"),
        (["step", "--rounds=0"], "--rounds"),
        (["linear", "--engine=warp"], "'warp'"),
        (["linear", "--block", "32x32", "36x32"], "block 36x32 does not divide --shape=384x1536"),
        (["linear", "--ratio", "0.5", "1.5"], "1.5"),
        (["linear", "--rounds=0"], "--rounds=0"),
        (["linear", "--backward=half"], "'half'"),
        (["gradient", "--engine=warp"], "'warp'"),
        (["gradient", "--rule=5:4"], "5:4"),
        (["gradient", "--rule=2:3", "--shape=8x4"], "2:3 does not divide the 4"),
        (["gradient", "--shape=8by4"], "--shape '8by4'"),
        (["gradient", "--tokens=0"], "--tokens=0"),
        (["gradient", "--method=largest"], "'largest'"),
        (["memory", "--model=resnet"], "--model=resnet"),
        (["memory", "--batch-size", "8", "0"], "--batch-size=0"),
        (["memory", "--ratio=1.5"], "1.5"),
        (["memory", "--ratio=0"], "--ratio=0 is the dense baseline"),
        (["memory", "--ratio"], "need a value"),
        (["memory", "--batch-size"], "need a value"),
        (["memory", "--block=8"], "'8'"),
        (["input", "--size=500"], "--size '500'"),
        (["input", "--images=0"], "--images=0"),
        (["input", "--kilobytes=nan"], "--kilobytes=nan"),
        (["input", "--workers", "1", "0"], "--workers=0"),
        (["gpu-table", "nowhere"], "nowhere holds no results"),
        (["gpu-roofline", "nowhere", "--out=roof.png"], "nowhere holds no results"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    named: str,
) -> None:
    assert run(monkeypatch, *arguments) == 2
    said = capsys.readouterr()
    assert not said.out
    # The first use of a machine also says that it builds the kernels.
    said_of_it = [text for text in said.err.splitlines() if not text.startswith("building the CPU")]
    (line,) = said_of_it
    assert line.startswith("error: ")
    assert named in line


@pytest.mark.parametrize(
    ("name", "option"), [("step", "--rounds"), ("linear", "--rounds"), ("memory", "--block")]
)
def test_every_benchmark_explains_its_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, option: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, name, "--help")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert option in text
    assert "--ratio" in text
