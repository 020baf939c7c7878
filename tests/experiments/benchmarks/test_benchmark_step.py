"""The benchmark of a training step trains with every contender."""

import sys
import types

import jax
import pytest
import tyro
from benchmarks import step as benchmark_step

from sparsemlp import InputError


@pytest.mark.slow
def test_a_whole_training_step_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    more = ("ratio=0.5 activation=8x8:0.8 gradient=2:4",)
    benchmark_step.measure_step(benchmark_step.Step(batch_size=2, rounds=1, steps=1, more=more))
    text = capsys.readouterr().out
    assert "activation=8x8:0.8" in text
    assert "dense" in text
    assert "reference: 32x32 at 0.8, masked" in text


@pytest.mark.parametrize("options", [{"ratio": 0.0}, {"ratio": 1.0}, {"rounds": 0}, {"steps": 0}])
def test_options_that_measure_nothing_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError):
        benchmark_step.measure_step(benchmark_step.Step(**options))  # pyright: ignore[reportArgumentType]


def test_every_more_is_a_contender_of_its_own() -> None:
    arguments = ["--more", "ratio=0.5 gradient=2:4", "--more", "activation=8x8:0.8"]
    options = tyro.cli(benchmark_step.Step, args=arguments)
    assert options.more == ("ratio=0.5 gradient=2:4", "activation=8x8:0.8")


def test_a_model_string_of_more_has_no_block_of_the_others_beside_it(monkeypatch) -> None:
    configs = []
    monkeypatch.setattr(benchmark_step, "jax_steps", lambda _, config: configs.append(config))
    monkeypatch.setattr(benchmark_step, "take_turns", lambda *_: {"dense": [1.0]})
    monkeypatch.setattr(benchmark_step, "pytorch_device", lambda: None)
    string = "ResMLP5 @ XChannel = masked 0.8 (32, 32);"
    more = (f"config='{string}' seed=1", "ratio=0.5")
    benchmark_step.measure_step(benchmark_step.Step(batch_size=7, more=more))
    *_, own, other = configs
    assert (own.config, own.block, own.batch_size, own.seed) == (string, None, 7, 1)
    assert (other.config, other.block, other.ratio) == (None, "32x32", 0.5)


@pytest.mark.parametrize(
    ("platform", "has_gpu", "device", "words"),
    [
        ("cpu", False, "cpu", ""),
        ("gpu", True, "cuda", ""),
        ("gpu", False, None, "PyTorch 9 finds no GPU"),
        ("tpu", True, None, "nothing to compare with on tpu"),
    ],
)
def test_pytorch_trains_where_jax_does_or_not_at_all(
    monkeypatch, capsys, platform, has_gpu, device, words
):
    cuda = types.SimpleNamespace(is_available=lambda: has_gpu)
    torch = types.SimpleNamespace(cuda=cuda, __version__="9", __spec__=object())
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    assert benchmark_step.pytorch_device() == device
    assert words in capsys.readouterr().err
