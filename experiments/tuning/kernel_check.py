"""How right a kernel's result is: near as rounding allows, and zero where nothing is kept."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels import Reference
from tuning.compiled_loops import UNTUNED
from tuning.work import Work

_LONG = 64
"""Entries of a line that has a mean to go by."""


class Wanted(NamedTuple):
    """What a kernel has to compute.

    Attributes:
      results: arrays in float32, or trees of them.
      is_empty: in the same form, whether an entry is a sum without terms and has to be zero. Sums
        with terms are zero by chance as well, and another order of the terms leaves them beside it.
    """

    results: Any
    is_empty: Any


def expected(work: Work) -> Wanted:
    """The result by engine `reference`, float32 operands multiplied without rounding them.

    Of operands without a sign no terms cancel, so a sum that is zero then has none.
    """
    return expected_by(work)(*work.operands)


def expected_by(work: Work) -> Callable[..., Wanted]:
    """The compiled program that finds what is `expected` of operands like those of the work.

    Neither its compilation nor that of what compares results with it needs the device.
    """
    reference = work.reference or work.sparse(Reference())

    def compute(*operands: Any) -> Wanted:
        wide = jax.tree.map(
            lambda a: a.astype(jnp.float32) if jnp.issubdtype(a.dtype, jnp.floating) else a,
            operands,
        )
        positive = reference(*jax.tree.map(jnp.abs, wide))
        return Wanted(reference(*wide), jax.tree.map(lambda a: a == 0, positive))

    with jax.default_matmul_precision("highest"):
        lowered = jax.jit(compute).lower(*work.operands)
    for result in jax.tree.leaves(jax.eval_shape(work.dense, *work.operands)):
        _distance(result.shape, result.dtype)
    return lowered.compile(UNTUNED)


def compiled(function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """The program of a function of these operands; the error if it does not compile."""
    try:
        return jax.jit(function).lower(*operands).compile()
    except Exception as error:
        # Whatever the compiler or the driver refuses.
        return error


def compare(program: Any, work: Work, wanted: Wanted, dtype: str) -> str:
    """Runs what `compiled` returned: why the results are wrong; empty if they are right.

    Raises:
      Exception: the one that kept it from compiling, or whatever running it raises.
    """
    if isinstance(program, Exception):
        raise program
    return reason_wrong(program(*work.operands), wanted, dtype, work)


def reason_wrong(results: Any, wanted: Wanted, dtype: str, work: Work) -> str:
    """Why results are wrong, from their distance to those in float32; empty if they are right.

    A result sums K products of operands. Float32 operands may be cut to TF32 (10 bits, so up to u =
    2^-10 each), bfloat16 ones are exact; the sum rounds K partial sums to float32 (2^-24 each, as
    does the wanted one), and R times on the way a number is rounded to its dtype. Errors that are
    independent add in squares, so relative to the root mean square of the result the distance has
    a standard deviation of at most `2 u + 2^-24 sqrt(K) + sqrt(R) eps / 2`; the bound is 4 of these
    for its own root mean square, and 40 for the largest of all entries, whose own size may be many
    times that of the mean. The former holds of each line of a result as well (all entries with one
    index of an axis, such as a column), relative to that line's size or a tenth of the whole's: a
    block that is missing or too much is a small part of the whole, but not of its lines.

    Args:
      results: arrays, or trees of them.
      wanted: what they have to be.
      dtype: of the operands.
      work: what K and R are taken from.
    """
    operand = 2.0**-10 if dtype == "float32" else 0.0
    of_result = float(jnp.finfo(jnp.dtype(dtype)).eps) / 2
    rounded = math.sqrt(work.n_roundings) * of_result
    deviation = 2 * operand + 2.0**-24 * math.sqrt(work.n_terms) + rounded
    all_leaves = zip(*map(jax.tree.leaves, (results, *wanted)), strict=True)
    for index, (got, want, is_empty) in enumerate(all_leaves):
        mean, most, is_there = map(float, _distance(got.shape, got.dtype)(got, want, is_empty))
        if not mean <= 4 * deviation or not most <= 40 * deviation:
            return (
                f"result {index} is off by {mean:.2e} of its size in the mean of a line and by "
                f"{most:.2e} at most, where {4 * deviation:.2e} and {40 * deviation:.2e} are "
                "allowed"
            )
        if is_there:
            return f"result {index} is not zero where it has to be"
    return ""


@functools.lru_cache(64)
def _distance(shape: tuple[int, ...], dtype: Any) -> Callable[..., tuple[Array, ...]]:
    """Finds the distance to what is wanted relative to its size, and stray values.

    That is the largest root mean square, of the whole and of all long lines, and the largest entry.
    It is one program, where a GPU would compile each operation by itself.
    """

    def mean_size(values: Array, axes: Sequence[int]) -> Array:
        return jnp.sqrt(jnp.mean(jnp.square(values), axes))

    def share(distance: Array, size: Array) -> Array:
        return jnp.max(jnp.where(distance == 0, 0, distance / size))

    def compute(got: Array, want: Array, is_empty: Array) -> tuple[Array, ...]:
        every = range(len(shape))
        distance = got.astype(jnp.float32) - want
        size = mean_size(want, every)
        shares = [share(mean_size(distance, every), size)]
        for axis in every:
            others = [other for other in every if other != axis]
            if math.prod(shape[other] for other in others) >= _LONG:
                own = jnp.maximum(mean_size(want, others), size / 10)
                shares.append(share(mean_size(distance, others), own))
        return (
            jnp.max(jnp.stack(shares)),
            share(jnp.abs(distance), size),
            jnp.any(is_empty & (got != 0)),
        )

    kinds = (dtype, jnp.float32, bool)
    return jax.jit(compute).lower(*(jax.ShapeDtypeStruct(shape, kind) for kind in kinds)).compile()
