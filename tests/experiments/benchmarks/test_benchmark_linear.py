"""The benchmark of a linear layer prints a row a layer and writes the same numbers."""

import dataclasses
import json
import statistics
from pathlib import Path

import pytest
from benchmarks import linear as benchmark_linear
from benchmarks.linear_points import Linear
from benchmarks.timing import Peak

TINY = Linear(
    shape=("8x12",), block=("3x4",), ratio=(0.5, 0.75), rows=6, engine="reference", rounds=1
)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 10 GFLOP/s, on which dense takes 4, 1 and 10 ms and all else 2, 1 and 1."""

    def turns(contenders: dict, rounds: int, steps: dict) -> dict[str, list[float]]:
        del rounds
        assert set(steps) == set(contenders)
        for run in contenders.values():
            run(2)
        return {
            name: [0.004, 0.001, 0.010] if name.endswith("_dense") else [0.002, 0.001, 0.001]
            for name in contenders
        }

    monkeypatch.setattr(benchmark_linear, "take_turns", turns)
    monkeypatch.setattr(benchmark_linear, "steps_in_a_turn", lambda run: 1)
    monkeypatch.setattr(benchmark_linear, "measured_peak", lambda: Peak(10.0, "a dream"))


@pytest.mark.usefixtures("scripted")
def test_results_go_into_fresh_memory_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert "results reused" in " ".join(measure(TINY, capsys))
    assert "results fresh" in " ".join(measure(dataclasses.replace(TINY, reuse=False), capsys))


def measure(options: Linear, capsys: pytest.CaptureFixture[str]) -> list[str]:
    benchmark_linear.measure_linear(options)
    return capsys.readouterr().out.splitlines()


@pytest.mark.usefixtures("scripted")
def test_the_numbers_follow_from_the_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "linear.json"
    lines = measure(dataclasses.replace(TINY, out=out), capsys)
    assert max(map(len, lines)) <= 100
    record = json.loads(out.read_text())
    first, second = record["points"]
    assert (first["shape"], first["block"], first["ratio"]) == ("8x12", "3x4", 0.5)
    assert (first["density"], second["density"]) == (0.5, 0.25)
    assert set(first["dense_over_sparse"].values()) == {4.0}
    low, high = statistics.quantiles([2, 1, 10], n=4)[::2]
    assert first["forward_backward_quartiles"] == pytest.approx([low, high])
    assert first["median_ms"]["forward_backward_dense"] == pytest.approx(4)
    gflops = 3 * 2 * 6 * 48 / 0.001 / 1e9
    assert first["gflops"] == pytest.approx(gflops)
    assert first["share_of_peak"] == pytest.approx(gflops / 10)
    assert first["selection_share"] == pytest.approx(1)
    assert record["peak"] == {"gflops": 10, "source": "a dream"}
    assert record["environment"]["versions"]["jax"]
    assert record["options"]["ratio"] == [0.5, 0.75]
    rows = [line.split() for line in lines if line.split()[:1] == ["8x12"]]
    assert [row[:3] for row in rows] == [["8x12", "3x4", "0.5"], ["8x12", "3x4", "0.75"]]
    assert rows[0][3:8] == ["4.00x"] * 4 + [f"{low:.2f}-{high:.2f}"]
    text = " ".join(" ".join(lines).split())
    assert "engine reference" in text
    assert "peak 10 GFLOP/s, a dream" in text
    assert "jax " in text


@pytest.mark.thorough(after=1)
@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_gradients_that_stay_dense_are_called_so(
    capsys: pytest.CaptureFixture[str], tokens: bool, precision: str
) -> None:
    options = dataclasses.replace(
        TINY, backward="dense", tokens=tokens, channels=2, precision=precision
    )
    lines = measure(options, capsys)
    rows = [line.split() for line in lines if line.split()[:1] == ["8x12"]]
    assert [row[3:7] for row in rows] == [["4.00x", "dense", "dense", "4.00x"]] * 2


def test_a_layer_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark_linear, "measured_peak", lambda: Peak(10.0, "a dream"))
    lines = measure(dataclasses.replace(TINY, ratio=(0.5,)), capsys)
    (row,) = [line.split() for line in lines if line.split()[:1] == ["8x12"]]
    assert sum(cell.endswith("x") for cell in row[3:]) == 4
