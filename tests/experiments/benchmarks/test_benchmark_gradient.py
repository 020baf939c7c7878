"""The benchmark of a pruned output gradient measures every rule of every layer."""

import pytest
from benchmarks.gradient import Gradient, measure_gradient, measure_layer

from sparsemlp import GradientPruning


def test_every_layer_and_rule_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    measure_gradient(
        Gradient(shape=("8x16", "16x8"), rule=("2:4", "1:8"), samples=2, tokens=20, rounds=1)
    )
    lines = capsys.readouterr().out.splitlines()
    for shape in ("8x16", "16x8"):
        for rule in ("2:4", "1:8"):
            (line,) = [line for line in lines if f" {shape} " in line and f" {rule} " in line]
            assert line.count("x ") >= 3


def test_the_rule_is_measured_beside_the_dense_layer() -> None:
    rule = GradientPruning(2, 4, "rescaled")
    seconds = measure_layer((8, 16), [rule], Gradient(samples=2, tokens=20, rounds=1))
    assert {"dense", "dense layer", f"pruning {rule}", f"engine layer {rule}"} <= set(seconds)
    assert all(time > 0 for time in seconds.values())
