"""Loops do what they are said to do, as often, and failures are said.

That a compiler for GPUs moves nothing out of them is tested in `tests/kernels/gpu`.
"""

import contextlib
import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tuning import device_timing
from tuning.device_timing import Loop, compile_loops, looped, repetitions, time_loops
from tuning.watch import WorkLostError


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    return a @ b


OPERANDS = (jnp.arange(6.0).reshape(2, 3), jnp.ones((3, 4)))


@pytest.mark.parametrize(("n_times", "n_copies"), [(5, 10), (20, 10), (4, 1)])
def test_a_loop_does_what_the_function_does_as_often(n_times: int, n_copies: int) -> None:
    """And traces it once."""
    traced, done = [], []

    def counted(a: jax.Array, b: jax.Array) -> jax.Array:
        traced.append(a)
        jax.debug.callback(lambda: done.append(1))
        return product(a, b)

    found = jax.jit(looped(counted, n_times, n_copies))(OPERANDS, jnp.full((2, 4), jnp.nan))
    np.testing.assert_array_equal(found, product(*OPERANDS))
    jax.effects_barrier()
    assert len(done) == n_times
    assert len(traced) == 1


def test_a_loop_has_whole_turns() -> None:
    with pytest.raises(ValueError, match="15 repetitions are no multiple of 10"):
        looped(product, 15)


def test_loops_of_one_form_write_over_one_result() -> None:
    def twice(a: jax.Array, b: jax.Array) -> jax.Array:
        return 2 * product(a, b)

    def narrower(a: jax.Array, b: jax.Array) -> jax.Array:
        return product(a, b)[:, :1]

    functions = {"once": product, "twice": twice, "narrower": narrower}
    loops = compile_loops({name: (f, OPERANDS) for name, f in functions.items()}, 2)
    found = {}
    for name, loop in loops.items():
        assert isinstance(loop, Loop)
        loop(2)
        np.testing.assert_array_equal(loop.result(), functions[name](*OPERANDS))
        found[name] = loop.result()
    assert found["once"].is_deleted()
    assert not found["twice"].is_deleted()


def test_what_is_compiled_for_later_operands_is_traced_once() -> None:
    traced = []

    def counted(a: jax.Array, b: jax.Array) -> jax.Array:
        traced.append(a)
        return product(a, b)

    shapes = jax.eval_shape(lambda: OPERANDS)
    loop = compile_loops({"it": (counted, shapes)}, 20)["it"]
    assert isinstance(loop, Loop)
    assert len(traced) == 1
    loop.operands = OPERANDS
    loop(1)
    np.testing.assert_array_equal(loop.result(), product(*OPERANDS))
    loop.forget()
    assert not loop.operands


def test_what_a_run_leaves_unwritten_is_no_result_once_it_is_spoilt() -> None:
    def writes_a_part(operands: object, last: jax.Array) -> jax.Array:
        return last.at[0].set(1.0)

    shape, results = jax.ShapeDtypeStruct((2, 2), jnp.float32), {}
    right = Loop(lambda _, last: jnp.ones_like(last), (), shape, results)
    partial = Loop(writes_a_part, (), shape, results)
    right(1)
    partial(1)
    np.testing.assert_array_equal(partial.result(), [[1, 1], [1, 1]])
    partial.spoil()
    partial(1)
    np.testing.assert_array_equal(partial.result(), [[1, 1], [np.nan, np.nan]])


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


@pytest.mark.parametrize(
    ("seconds", "n_times"), [(1e-9, 1000), (1e-4, 200), (1.1e-4, 190), (5e-3, 4), (1.0, 2)]
)
def test_a_loop_is_as_long_as_it_should_run(seconds: float, n_times: int) -> None:
    assert repetitions(seconds) == n_times


def test_the_ceilings_are_numbers_for_each_dtype() -> None:
    found = device_timing.measured_ceilings(is_tiny=True)
    assert found.bytes_per_second > 0
    assert set(found.flops) == {"bfloat16", "float32"}
