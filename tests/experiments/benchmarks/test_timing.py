"""Turns are counted as they should be, and the table says what was measured."""

import pytest
from benchmarks import timing

from pallas_kernels.cpu import library
from pallas_kernels.cpu.build import BuildError


def test_contenders_take_turns_and_the_first_turn_does_not_count() -> None:
    calls: list[tuple[str, int]] = []
    contenders = {
        "a": lambda steps: calls.append(("a", steps)),
        "b": lambda steps: calls.append(("b", steps)),
    }
    seconds = timing.take_turns(contenders, rounds=3, steps=5)
    assert calls == [("a", 5), ("b", 5)] * 4
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}
    assert all(time >= 0 for times in seconds.values() for time in times)
    calls.clear()
    timing.take_turns(contenders, rounds=1, steps={"a": 2, "b": 7})
    assert calls == [("a", 2), ("b", 7)] * 2


@pytest.mark.parametrize("step", [1e-6, 0.003, 0.02, 5.0])
def test_a_turn_is_as_long_as_it_should_be_and_not_much_longer(
    monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    now = 0.0

    def work(n_steps: int) -> None:
        nonlocal now
        now += n_steps * step

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)
    n_steps = timing.steps_in_a_turn(work, 0.02)
    assert n_steps * step > 0.02 * (1 - 1e-6)
    assert n_steps == 1 or n_steps * step <= 0.02 * 1.2 + step


def test_the_table_states_medians_ratios_and_versions(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {"dense": [0.002, 0.004, 0.030], "sparse": [0.001, 0.002, 0.003]}
    timing.print_table("products", seconds, "dense", ("numpy",))
    text = capsys.readouterr().out
    rows = {line.split()[1]: line for line in text.splitlines() if line.startswith("│")}
    dense, sparse = rows["dense"], rows["sparse"]
    assert "4.0" in dense
    assert "1.00x" in dense
    assert "2.0" in sparse
    assert "2.00x" in sparse
    assert "jax " in text
    assert "numpy " in text


def test_quartiles_hold_half_of_the_values() -> None:
    assert timing.quartiles([1.0, 2.0, 3.0]) == (1.0, 3.0)
    assert timing.quartiles([7.0]) == (7.0, 7.0)
    assert timing.quartiles([10.0, 1.0]) == (1.0, 10.0)


def test_the_peak_is_that_of_the_native_loop_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "peak_flops", lambda: 123e9)
    monkeypatch.setattr(timing.jax, "default_backend", lambda: "cpu")
    peak = timing.measured_peak()
    assert peak.gflops == 123
    assert "native" in peak.source


def test_the_peak_without_a_native_loop_is_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> float:
        raise BuildError("no compiler")

    monkeypatch.setattr(library, "peak_flops", missing)
    peak = timing.measured_peak(size=64)
    assert peak.gflops > 0
    assert "64^3 float32 product by XLA" in peak.source
