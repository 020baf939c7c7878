"""What every engine is held to: layers, and results in float64 with tolerances that are derived."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pairwise import covering_set

from pallas_kernels import ENGINES, SparseLayer
from sparsemlp import BlockMask, sparse_linear
from sparsemlp.blocks import block_grid, n_kept_blocks

Axis = Literal[-1, -2]
AXIS_VALUES: tuple[Axis, ...] = (-1, -2)

OUTPUTS = ("y", "dx", "dW", "db")
AXES = pytest.mark.parametrize("axis", AXIS_VALUES, ids=["features", "tokens"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
EVERY_ENGINE = pytest.mark.parametrize("engine", ENGINES)


class Shape(NamedTuple):
    """A kernel `(in, out)` and x: `[*batch, in]`, or `[*groups, in, channels]` along tokens."""

    kernel: tuple[int, int]
    batch: tuple[int, ...]
    groups: tuple[int, ...]
    channels: int

    def x(self, axis: int) -> tuple[int, ...]:
        return self._along(axis, self.kernel[0])

    def y(self, axis: int) -> tuple[int, ...]:
        return self._along(axis, self.kernel[1])

    def _along(self, axis: int, features: int) -> tuple[int, ...]:
        tokens = (*self.groups, features, self.channels)
        return (*self.batch, features) if axis == -1 else tokens


# Kernels that every block below divides; rows and channels that no vector length and no tile does.
SHAPES = {
    "aligned": Shape((128, 128), (64,), (2,), 64),
    "tall": Shape((256, 64), (37,), (2,), 19),
    "wide": Shape((64, 256), (2, 3, 7), (3, 2), 37),
    "one-row": Shape((96, 192), (1,), (), 1),
}
BLOCKS = ((1, 1), (4, 8), (16, 16), (32, 32), (64, 32))
RATIOS = (0.0, 0.5, 0.8, 0.97)
BACKWARDS = ("masked", "dense", "straight_through")
FACTORS: tuple[tuple[Any, ...], ...] = (
    tuple(SHAPES),
    BLOCKS,
    RATIOS,
    ("float32", "bfloat16"),
    BACKWARDS,
    AXIS_VALUES,
)


class Case(NamedTuple):
    """One choice of each factor."""

    shape: str
    block: tuple[int, int]
    ratio: float
    dtype: str
    backward: Any
    axis: Axis

    def __str__(self) -> str:
        (rows, cols), axis = self.block, "features" if self.axis == -1 else "tokens"
        return f"{self.shape}-{rows}x{cols}-{self.ratio}-{self.dtype}-{self.backward}-{axis}"


COVERING = [Case(*row) for row in covering_set(*FACTORS)]
EVERY_CASE = [Case(*row) for row in itertools.product(*FACTORS)]


class Operands(NamedTuple):
    """What a layer and its three gradients are computed from."""

    x: Any
    kernel: Any
    bias: Any
    mask: BlockMask
    dy: Any

    def map(self, change: Callable[[Any], Any]) -> "Operands":
        """All but the mask, changed."""
        x, kernel, bias, mask, dy = self
        return Operands(change(x), change(kernel), change(bias), mask, change(dy))


def draw(
    shape: Shape, axis: int, dtype: str, mask: BlockMask, stack: tuple[int, ...] = ()
) -> Operands:
    """Standard normal operands, rounded to `dtype`; each with the leading axes `stack`."""
    rng = np.random.default_rng(0)

    def normal(*sizes: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=stack + sizes), dtype)

    x, dy = normal(*shape.x(axis)), normal(*shape.y(axis))
    return Operands(x, normal(*shape.kernel), normal(shape.kernel[1]), mask, dy)


def random_mask(shape: Shape, block: tuple[int, int], ratio: float) -> BlockMask:
    down, across = block_grid(shape.kernel, block)
    rng, n_blocks = np.random.default_rng(1), down * across
    kept = rng.choice(n_blocks, n_kept_blocks(n_blocks, ratio), replace=False)
    return BlockMask(jnp.asarray(np.sort(kept), jnp.int32), shape.kernel, block)


def operands_of(case: Case) -> Operands:
    shape = SHAPES[case.shape]
    mask = random_mask(shape, case.block, case.ratio)
    return draw(shape, case.axis, case.dtype, mask)


def skip_unless_able(
    engine: str, mask: BlockMask, axis: Axis, dtype: str, platform: str | None = None
) -> None:
    """Skips a layer that the engine declines; a full mask is dense on every engine."""
    layer = SparseLayer(mask.kernel_shape, mask.block, mask.n_kept, axis, dtype)
    reason = ENGINES[engine].reason_against(layer, platform or jax.default_backend())
    if reason is not None and mask.n_kept < mask.n_blocks:
        pytest.skip(reason)


def value_and_gradients(
    operands: Operands, engine: str, axis: Axis, backward: Any
) -> tuple[jax.Array, ...]:
    """The arrays y, dx, dW, db."""
    x, kernel, bias, mask, dy = operands

    def call(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        return sparse_linear(
            x, kernel, bias, axis=axis, mask=mask, backward=backward, engine=engine
        )

    y, pull = jax.vjp(call, x, kernel, bias)
    return y, *pull(dy)


compiled = jax.jit(value_and_gradients, static_argnames=("engine", "axis", "backward"))


class Expected(NamedTuple):
    """The arrays y, dx, dW, db in float64, and how far from them each entry may be."""

    values: tuple[np.ndarray, ...]
    tolerances: tuple[np.ndarray, ...]


def expected(operands: Operands, axis: Axis, backward: Any) -> Expected:
    """What `reference` computes in float64 from operands that are rounded already.

    Every output is a sum of K products p, summed in float32 in any order: K is `in` for y, `out`
    for dx, and the rows of x, M, for dW and db. Adding the k-th product rounds a partial sum whose
    size is about the root sum of squares of its k terms, `s sqrt(k / K)` with `s = sqrt(sum p^2)`;
    one rounding errs by up to u = eps / 2, with standard deviation `u / sqrt(3)` of what it rounds.
    K roundings make `u s sqrt(K / 6)` or 0.41 u sqrt(K) s, and less in any better order: c = 4 is
    ten standard deviations, and above the sure bound for sums of up to 4 terms. (XLA's longest
    sums come to 2.5 at the worst entry of thousands, whose partial sums run far out.) Where no
    block is kept, s = 0, and the output has to be zero or the bias exactly.

    Then the output is rounded to its dtype, y maybe twice, before and after the bias is added.
    """

    def in_float64(change: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, ...]:
        def widen(a: Any) -> np.ndarray:
            return change(np.asarray(a).astype(np.float64))

        with jax.enable_x64(True):
            found = compiled(operands.map(widen), "reference", axis, backward)
        assert all(a.dtype == np.float64 for a in found)
        return tuple(np.asarray(a) for a in found)

    values, squares = in_float64(np.asarray), in_float64(np.square)
    in_features, out_features = operands.kernel.shape
    n_rows = operands.x.size // in_features
    lengths = (in_features + 1, out_features, n_rows, n_rows)
    of_a_sum, of_output = (
        float(jnp.finfo(dtype).eps) / 2 for dtype in (jnp.float32, operands.x.dtype)
    )
    bias = np.abs(np.asarray(operands.bias).astype(np.float64))
    rounded = [np.abs(value) for value in values]
    rounded[0] = 2 * rounded[0] + (bias if axis == -1 else bias[:, None])
    tolerances = tuple(
        (4 * of_a_sum * np.sqrt(length) * np.sqrt(square) + of_output * size) * (1 + of_output)
        for length, square, size in zip(lengths, squares, rounded, strict=True)
    )
    return Expected(values, tolerances)


def assert_conforms(actual: Any, want: Expected, dtype: str) -> None:
    for name, got, value, tolerance in zip(OUTPUTS, actual, *want, strict=True):
        assert (got.dtype, got.shape) == (jnp.dtype(dtype), value.shape), name
        error = np.abs(np.asarray(got).astype(np.float64) - value)
        # A NaN is within no tolerance.
        off = [tuple(where) for where in np.argwhere(~(error <= tolerance)).tolist()]
        assert len(off) == 0, (
            f"{name}: {len(off)} of {error.size} entries are off, the first at {off[0]}: "
            f"{got[off[0]]} for {value[off[0]]}, tolerance {tolerance[off[0]]}"
        )


@functools.lru_cache(maxsize=1)
def expected_of(case: Case) -> Expected:
    return expected(operands_of(case), case.axis, case.backward)


def check(engine: str, case: Case) -> None:
    """Raises AssertionError unless the engine computes the layer of `case` and its gradients."""
    operands = operands_of(case)
    actual = compiled(operands, engine, case.axis, case.backward)
    assert_conforms(actual, expected_of(case), case.dtype)
    if case.backward == "masked":
        dropped = ~np.asarray(operands.mask.dense())
        np.testing.assert_array_equal(np.asarray(actual[2])[dropped], 0)


SMALL = Shape((64, 128), (5,), (2,), 3)
SMALL_BLOCK = (32, 16)  # a grid of 4x4
PATTERNS = {
    "a full row, the others empty": (0, 1, 2, 3),
    "a full column, the others empty": (2, 6, 10, 14),
    "a square with an empty row and column on each side": (5, 6, 9, 10),
    "one block in each row and column": (1, 4, 11, 14),
}


def small_mask(kept: tuple[int, ...] | np.ndarray) -> BlockMask:
    return BlockMask(jnp.asarray(kept, jnp.int32), SMALL.kernel, SMALL_BLOCK)


def check_pattern(engine: str, axis: Axis, dtype: str, pattern: str) -> None:
    """Raises AssertionError unless what a mask leaves empty, and only that, is zero or the bias."""
    mask = small_mask(PATTERNS[pattern])
    skip_unless_able(engine, mask, axis, dtype)
    # No sum of these operands is zero but those of no terms.
    operands = draw(SMALL, axis, dtype, mask)
    actual = compiled(operands, engine, axis, "masked")
    assert_conforms(actual, expected(operands, axis, "masked"), dtype)
    y, dx, dw, _ = (np.asarray(a) for a in actual)
    kept = np.asarray(mask.dense())
    np.testing.assert_array_equal(dw != 0, kept)
    features_last = (lambda a: a) if axis == -1 else (lambda a: a.swapaxes(-1, -2))
    reached = np.broadcast_to(kept.any(axis=1), features_last(dx).shape)
    np.testing.assert_array_equal(features_last(dx) != 0, reached)
    bias_alone = features_last(y)[..., ~kept.any(axis=0)]
    alone = np.asarray(operands.bias)[~kept.any(axis=0)]
    np.testing.assert_array_equal(bias_alone, np.broadcast_to(alone, bias_alone.shape))
