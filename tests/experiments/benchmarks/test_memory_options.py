"""The table of the options that save memory: its rows, and that each saves what it is meant to."""

from typing import Any

import jax
import pytest
from benchmarks import memory_options
from benchmarks.memory_options import (
    Bytes,
    Chosen,
    measure,
    mib,
    option_plans,
    option_rows,
    print_options,
)

from sparsemlp import ResMLP, resmlp_cifar10, resmlp_s24
from sparsemlp.resnet import ResNet9

BATCH = 8


def make(**changes: Any) -> ResMLP:
    return ResMLP(image_size=16, dim=32, depth=2, **changes)


def n_parameters() -> int:
    images = jax.ShapeDtypeStruct((1, 16, 16, 3), "float32")
    params = jax.eval_shape(make().init, jax.random.key(0), images)["params"]
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def measured(**options: Any) -> Bytes:
    return measure(make, {}, Chosen(**options), BATCH)


def test_every_option_saves_what_it_is_meant_to():
    plain = measured()
    assert measured(remat=True).kept < 0.5 * plain.kept
    halves = measured(accumulate=2)
    # What is kept are activations of images, apart from single numbers.
    assert halves.kept == pytest.approx(plain.kept / 2, rel=0.01)
    assert halves.planned < plain.planned
    narrow = measured(precision="bfloat16")
    assert narrow.kept < 0.75 * plain.kept
    assert narrow.state == plain.state


def test_an_average_takes_the_bytes_of_the_parameters_and_nothing_else():
    plain, averaged = measured(), measured(ema=0.9)
    # Two moments of Adam beside the parameters, and int32 counts of steps.
    assert 0 < plain.state - 3 * 4 * n_parameters() <= 16
    assert averaged.state - plain.state == 4 * n_parameters()
    assert (averaged.kept, averaged.planned) == (plain.kept, plain.planned)


def test_a_model_is_compared_with_what_it_can_be_trained_with():
    assert set(option_plans(resmlp_cifar10())) == {"dense", "32x32 at 0.8"}
    assert set(option_plans(resmlp_s24())) == set(option_plans(ResNet9())) == {"dense"}
    assert not any(chosen.accumulate > 1 for chosen in option_rows(ResNet9()).values())
    assert {chosen.accumulate for chosen in option_rows(make()).values()} == {1, 2, 4}


def test_the_table_has_a_row_for_each_plan_and_option(monkeypatch, capsys):
    monkeypatch.setattr(memory_options, "measure", lambda *_: Bytes(2**20, 2**21, 2**10))
    print_options("small", resmlp_cifar10, BATCH)
    text = capsys.readouterr().out
    assert "small, batch 8" in text
    n_rows = len(option_plans(resmlp_cifar10())) * len(option_rows(resmlp_cifar10()))
    assert text.count("100%") == 2 * n_rows
    assert mib(0) == "-"
