"""What is said of engines that `auto` passes over."""

import logging
from collections.abc import Iterator
from typing import Any, get_args

import jax
import jax.numpy as jnp
import pytest
from engine_doubles import (
    LAYER,
    Able,
    Choosy,
    MeantForElsewhere,
    MeantForHere,
    choose,
    put_first,
)

from pallas_kernels import ENGINES, Phase, SparseLayer
from pallas_kernels.cpu import library
from pallas_kernels.cpu.build import WAY_OUT, BuildError
from sparsemlp import BlockMask, engines, sparse_linear
from sparsemlp.engines import choose_engine
from sparsemlp.errors import InputError

PHASES: tuple[Phase, ...] = get_args(Phase)
EVERY_PHASE = pytest.mark.parametrize("phase", PHASES)
on_a_processor = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="engine cpu computes on processors"
)


@pytest.fixture
def said(caplog) -> Iterator[Any]:
    """The messages of the library's logger, as in a process that has said nothing yet."""
    engines._say_once.cache_clear()
    with caplog.at_level(logging.DEBUG, "sparsemlp"):
        yield lambda: [r.getMessage() for r in caplog.records if r.name == "sparsemlp"]
    engines._say_once.cache_clear()


@pytest.fixture
def no_compiler(monkeypatch) -> None:
    """A machine on which the native kernels cannot be built."""
    error = BuildError(f"no C++ compiler of c++, g++, clang++ runs here; {WAY_OUT}")
    monkeypatch.setattr(library, "load_library", lambda: error)


def test_auto_says_once_why_an_engine_that_is_meant_for_here_is_passed_over(monkeypatch, said):
    put_first(monkeypatch, MeantForHere())
    for phase in PHASES:
        assert choose_engine("auto", LAYER, phase, 8).name != "unable"
    (message,) = said()
    assert "engine 'unable' cannot run here: blocks of (32, 32) on" in message
    assert "install abacus" in message
    assert "the next best is used" in message


def test_auto_does_not_ask_an_engine_that_was_not_measured_whether_it_can(monkeypatch, said):
    """It would be left out all the same, and jax-triton compiles a product to find out."""

    class NotMeasured(MeantForHere):
        measured = False

        def reason_against(self, layer: SparseLayer, platform: str) -> str | None:
            raise AssertionError("asked")

    put_first(monkeypatch, NotMeasured())
    assert choose("auto", LAYER).name != "unable"
    assert not any("cannot run here" in message for message in said())


@pytest.mark.parametrize("is_other_measured", [False, True])
def test_auto_says_how_to_measure_engines_where_none_is_in_a_table(
    monkeypatch, said, is_other_measured
):
    class NotMeasured(MeantForHere):
        measured = False

    class Other(NotMeasured):
        def is_measured_here(self) -> bool:
            return is_other_measured

    own = {"unable": NotMeasured(), "other": Other(), "reference": ENGINES["reference"]}
    monkeypatch.setattr(engines, "ENGINES", own)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert choose("auto", LAYER).name == "reference"
    told = [message for message in said() if "experiments/tune.py" in message]
    assert bool(told) != is_other_measured


def test_auto_is_silent_about_an_engine_that_is_meant_for_elsewhere(monkeypatch, said):
    put_first(monkeypatch, MeantForElsewhere())
    choose("auto", LAYER)
    assert said() == []


def test_nothing_is_said_of_engines_that_run_or_do_not_pay_or_were_called_by_name(
    monkeypatch, said
):
    put_first(monkeypatch, Choosy("mlp"), Able())
    choose("auto", LAYER)
    choose("reference", LAYER)
    assert said() == []
    put_first(monkeypatch, MeantForHere())
    with pytest.raises(InputError):
        choose("unable", LAYER)
    assert said() == []


@on_a_processor
def test_without_a_compiler_auto_computes_all_the_same_and_says_once_what_to_install(
    no_compiler, said
):
    for phase in PHASES:
        assert choose_engine("auto", LAYER, phase, 2**20).name == "reference"
    mask = BlockMask(jnp.array([0, 1, 3], jnp.int32), LAYER.kernel_shape, LAYER.block)
    y = sparse_linear(jnp.ones((2, 64)), jnp.ones((64, 64)), mask=mask)
    assert y.tolist() == [[32.0] * 32 + [64.0] * 32] * 2
    (message,) = said()
    for part in ("engine 'cpu'", "no C++ compiler", "apt install g++", "the next best is used"):
        assert part in message


@on_a_processor
def test_without_a_compiler_the_cpu_engine_by_name_says_what_to_install(no_compiler, said):
    mask = BlockMask(jnp.array([0, 1, 3], jnp.int32), LAYER.kernel_shape, LAYER.block)
    with pytest.raises(InputError) as caught:
        sparse_linear(jnp.ones((2, 64)), jnp.ones((64, 64)), mask=mask, engine="cpu")
    for part in ("engine 'cpu' cannot run here", "no C++ compiler", "apt install g++"):
        assert part in str(caught.value)
    assert said() == []
