"""Loops are timed in turns, and failures are said."""

import contextlib
import itertools
import time

import jax
import pytest
from test_compiled_loops import OPERANDS, product
from tuning import device_timing
from tuning.compiled_loops import compile_loops
from tuning.device_timing import time_loops
from tuning.watch import WorkLostError


def test_what_does_not_compile_or_run_is_said_and_the_others_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = itertools.count()

    def broken(a: jax.Array, b: jax.Array) -> jax.Array:
        raise ValueError("no such tile")

    loops = compile_loops({"good": (product, OPERANDS), "bad": (broken, OPERANDS)}, 3)

    def fails(n_calls: int) -> None:
        raise RuntimeError("out of memory")

    def fails_later(n_calls: int) -> None:
        if next(ticks) == 3:
            raise RuntimeError("no memory left")

    clock = itertools.accumulate(itertools.count(), lambda at, turn: at + 0.3)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    worse = {"worse": fails, "late": fails_later}
    timed, failed = time_loops(loops | worse, 3, rounds=3)
    assert timed["good"].median == pytest.approx(0.1)
    assert set(timed) == {"good"}
    assert "no such tile" in failed["bad"]
    assert "out of memory" in failed["worse"]
    assert "no memory left" in failed["late"]


def test_each_run_is_watched_and_who_breaks_the_device_in_a_turn_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched: list[str] = []

    def guard(name: str) -> contextlib.AbstractContextManager[None]:
        watched.append(name)
        return contextlib.nullcontext()

    def breaks(n_calls: int) -> None:
        if watched.count("bad") == 3:
            raise RuntimeError("an illegal address")

    def lost(name: str, error: Exception) -> None:
        raise WorkLostError(name, str(error))

    monkeypatch.setattr(device_timing, "require_device", lost)
    with pytest.raises(WorkLostError, match=r"after bad .an illegal address"):
        time_loops({"good": lambda _: None, "bad": breaks}, 1, rounds=3, guard=guard)
    assert watched == ["good", "bad"] * 3
