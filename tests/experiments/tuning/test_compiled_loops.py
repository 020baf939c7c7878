"""Loops do what they are said to do, as often.

That a compiler for GPUs moves nothing out of them is tested in `tests/kernels/gpu`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tuning.compiled_loops import Loop, compile_loops, looped, repetitions


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


@pytest.mark.parametrize(
    ("seconds", "n_times"), [(1e-9, 1000), (1e-4, 200), (1.1e-4, 190), (5e-3, 4), (1.0, 2)]
)
def test_a_loop_is_as_long_as_it_should_run(seconds: float, n_times: int) -> None:
    assert repetitions(seconds) == n_times
