"""Many repetitions of what a device does in one compiled loop, to be timed.

A call from Python takes longer than a small product on a GPU, so a loop is compiled around it. Its
length is a constant, for a GPU asks the host after each step of any other loop. A turn of the loop
costs some microseconds by itself, so it has several repetitions, which a GPU is given together as
one graph. Each of them depends on the result of the one before: a small kernel looks at a number of
it before it writes a number of the first operand, always the same. So none can be left out, joined
with another or moved out of the loop, and each finds its operands row by row: what a contender
needs turned it turns each time. Operands that fit the cache of the device stay in it, for every
contender alike.
"""

import concurrent.futures
import functools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint

from tuning.watch import reason_of

N_COPIES = 10
"""Repetitions in a turn of a loop, where it has so many."""
UNTUNED: dict[str, str | bool] = {"xla_gpu_autotune_level": "0"}
"""Options with which XLA compiles without the device, on which it tries products else."""


def looped(
    function: Callable[..., Any], n_times: int, n_copies: int = N_COPIES
) -> Callable[..., Any]:
    """Does a function so many times, one after the other, in one program.

    Args:
      function: takes arrays, or trees of them, and needs the first one.
      n_times: how often; a constant of the program.
      n_copies: how many of them are in a turn of the loop, if there are as many; n_times is a
        multiple of it, or less.

    Returns:
      Takes the operands and something in the form of the result, and returns the last result.
    """
    n_copies = min(n_copies, n_times)
    if n_times % n_copies:
        raise ValueError(f"{n_times} repetitions are no multiple of {n_copies}")

    # It is traced and lowered once, however often it is called.
    @jax.jit
    def once(*operands: Any) -> Any:
        return function(*jax.tree.map(_row_by_row, operands))

    def many(operands: tuple[Any, ...], last: Any) -> Any:
        arrays, tree = jax.tree.flatten(operands)
        corner = _corner(arrays[0])

        def again(_: Any, given: tuple[Any, Any]) -> tuple[Any, Any]:
            first, last = given
            for _ in range(n_copies):
                first, rest, last = jax.lax.optimization_barrier((first, arrays[1:], last))
                first = _written_anew(first, corner, last)
                last = once(*jax.tree.unflatten(tree, [first, *rest]))
            return first, last

        return jax.lax.fori_loop(0, n_times // n_copies, again, (arrays[0], last))[1]

    return many


def _written_anew(array: jax.Array, corner: jax.Array, results: Any) -> jax.Array:
    """The array, its first number written in place, if no result begins with the largest number.

    The number comes from elsewhere: an array that is read and written at once is copied.
    """
    is_unheard_of = jnp.zeros((), bool)
    for result in jax.tree.leaves(results):
        kind = jnp.finfo if jnp.issubdtype(result.dtype, jnp.floating) else jnp.iinfo
        is_unheard_of |= _corner(result) == jnp.asarray(kind(result.dtype).max, result.dtype)
    number = jnp.where(is_unheard_of, jnp.zeros_like(corner), corner)
    at = (0,) * array.ndim
    return jax.lax.dynamic_update_slice(array, number.reshape((1,) * array.ndim), at)


def _corner(array: jax.Array) -> jax.Array:
    return array[(0,) * array.ndim]


def _row_by_row(a: jax.Array) -> jax.Array:
    """The array as it lies in memory outside: else XLA turns it once, before the loop."""
    return with_layout_constraint(a, Layout(tuple(range(a.ndim))))


class Loop:
    """A compiled loop.

    Each run writes its result over the last one of any loop whose results have the same form: of
    many contenders one result is in memory.

    Args:
      program: the compiled `looped`.
      operands: its operands; shapes where these are made later, before the first run.
      shapes: the form of the result.
      results: the last results of all loops, by form.
    """

    def __init__(
        self, program: Any, operands: tuple[Any, ...], shapes: Any, results: dict[Any, Any]
    ) -> None:
        self.operands = operands
        self._program, self._results = program, results
        leaves, tree = jax.tree.flatten(shapes)
        self._form = tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        self._filled = _fill(self._form)

    def __call__(self, n_calls: int) -> None:
        """Runs the loop so many times and waits."""
        last = self._results.pop(self._form, None)
        if last is None:
            last = self._filled(0.0)
        for _ in range(n_calls):
            last = self._program(self.operands, last)
        self._results[self._form] = jax.block_until_ready(last)

    def spoil(self) -> None:
        """Writes NaN where the next run writes: what that leaves out is not taken for its result.

        What lies there else is the result of another loop, as a rule the right one.
        """
        self._results.pop(self._form, None)
        self._results[self._form] = self._filled(math.nan)

    def result(self) -> Any:
        """That of the run before, if no other loop has run since."""
        return self._results[self._form]

    def forget(self) -> None:
        """Lets go of operands and results: of their memory, once nobody else has them."""
        self.operands = ()
        self._results.clear()


@functools.lru_cache(64)
def _fill(form: Any) -> Callable[[float], Any]:
    """What fills arrays of a form with a number: compiled, not to be when the device is needed."""
    tree, leaves = form

    def fill(number: jax.Array) -> Any:
        return tree.unflatten([jnp.full(shape, number, dtype) for shape, dtype in leaves])

    program = jax.jit(fill).lower(jax.ShapeDtypeStruct((), jnp.float32)).compile()
    return lambda number: program(np.float32(number))


def compile_loops(
    functions: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]],
    n_times: int,
    n_threads: int = 8,
    single: Collection[str] = (),
) -> dict[str, Loop | str]:
    """Compiles loops side by side.

    Args:
      functions: by name, a function and its operands, of which it needs the first.
      n_times: repetitions in a loop.
      n_threads: how many are compiled at a time.
      single: names of those with one repetition in a turn: of what takes long to compile, and has
        so many kernels that the loop is little beside them.

    Returns:
      For each name the loop; or why it does not compile.
    """
    results: dict[Any, Any] = {}

    def build(name: str) -> Loop | str:
        function, operands = functions[name]
        n_copies = 1 if name in single else N_COPIES
        try:
            # Traced once, for the shapes and for the loop.
            once = jax.jit(function)
            shapes = jax.eval_shape(once, *operands)
            program = jax.jit(looped(once, n_times, n_copies), donate_argnums=1)
            return Loop(program.lower(operands, shapes).compile(), operands, shapes, results)
        except Exception as error:
            return reason_of(error)

    with concurrent.futures.ThreadPoolExecutor(n_threads) as pool:
        return dict(zip(functions, pool.map(build, functions), strict=True))


def repetitions(seconds_of_one: float, seconds: float = 20e-3, most: int = 1000) -> int:
    """How many repetitions make so many seconds, beside which the start of a program is nothing.

    Few, or a multiple of `N_COPIES`.

    Args:
      seconds_of_one: what one is expected to take.
      seconds: how long a loop should run.
      most: how many at most.
    """
    n_times = max(2, min(most, math.ceil(seconds / max(seconds_of_one, 1e-9))))
    return n_times if n_times < N_COPIES else -(-n_times // N_COPIES) * N_COPIES
