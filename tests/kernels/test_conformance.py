"""Every engine computes what `reference` computes in float64, within a tolerance that is derived.

The default run covers every pair of choices; `-m exhaustive` runs every combination.
"""

import functools
import itertools
import json
import math
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from pairwise import covering_set

from pallas_kernels import (
    ENGINES,
    Mosaic,
    Reference,
    SparseLayer,
    Triton,
    dense,
)
from pallas_kernels.layout import dense_mask
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


def test_every_engine_is_known_by_its_own_name_and_none_is_still_planned():
    assert {name: engine.name for name, engine in ENGINES.items()} == {
        name: name for name in ENGINES
    }
    assert "reference" in ENGINES


def test_every_two_choices_meet_in_the_covering_set():
    for (i, first), (j, second) in itertools.combinations(enumerate(FACTORS), 2):
        met = {(case[i], case[j]) for case in COVERING}
        assert met == set(itertools.product(first, second))
    assert set(COVERING) <= set(EVERY_CASE)
    assert len(COVERING) < len(EVERY_CASE) / 30


@EVERY_ENGINE
@pytest.mark.parametrize("case", COVERING, ids=str)
def test_an_engine_computes_what_the_reference_computes_in_float64(engine, case):
    skip_unless_able(engine, operands_of(case).mask, case.axis, case.dtype)
    check(engine, case)


@pytest.mark.exhaustive
@EVERY_ENGINE
@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_an_engine_computes_every_combination(engine, case):
    skip_unless_able(engine, operands_of(case).mask, case.axis, case.dtype)
    if case[2:] == EVERY_CASE[0][2:]:
        # Thousands of programs would take more memory maps than a process may have.
        jax.clear_caches()
    check(engine, case)


class ForgetsABlockInY(Reference):
    def product(self, x, kernel, bias, kept, layer):
        return super().product(x, kernel, bias, kept[:-1], layer)


class ForgetsABlockInDx(Reference):
    def input_gradient(self, dy, kernel, kept, layer):
        return super().input_gradient(dy, kernel, kept[:-1], layer)


class ForgetsABlockInDw(Reference):
    def kernel_gradient(self, x, dy, kept, layer):
        return super().kernel_gradient(x, dy, kept[:-1], layer)


class LeavesDwUnmasked(Reference):
    def kernel_gradient(self, x, dy, kept, layer):
        return dense.kernel_gradient(x, dy, layer.axis)


class SumsInBfloat16(Reference):
    """Adds partial sums of 16 products to a bfloat16."""

    def product(self, x, kernel, bias, kept, layer):
        kernel = jnp.where(dense_mask(kept, layer.kernel_shape, layer.block), kernel, 0)
        y = jnp.zeros((), jnp.bfloat16)
        for start in range(0, kernel.shape[0], 16):
            inputs = slice(start, start + 16)
            y = (y + dense.product(x[:, inputs], kernel[inputs], None, -1)).astype(jnp.bfloat16)
        return y.astype(x.dtype) if bias is None else y.astype(x.dtype) + bias


class MultipliesInTF32(Reference):
    """Rounds its operands to the 10 bits of an NVIDIA tensor core's float32."""

    def product(self, x, kernel, bias, kept, layer):
        x, kernel = (jax.lax.reduce_precision(a, 8, 10) for a in (x, kernel))
        return super().product(x, kernel, bias, kept, layer)


@pytest.mark.parametrize(
    ("broken", "output", "dtype"),
    [
        (ForgetsABlockInY, "y", "float32"),
        (ForgetsABlockInY, "y", "bfloat16"),
        (ForgetsABlockInDx, "dx", "float32"),
        (ForgetsABlockInDx, "dx", "bfloat16"),
        (ForgetsABlockInDw, "dW", "float32"),
        (ForgetsABlockInDw, "dW", "bfloat16"),
        (LeavesDwUnmasked, "dW", "bfloat16"),
        (SumsInBfloat16, "y", "float32"),
        (SumsInBfloat16, "y", "bfloat16"),
        (MultipliesInTF32, "y", "float32"),
    ],
)
def test_an_engine_that_errs_by_one_weight_or_in_its_sums_does_not_pass(
    broken, output, dtype, monkeypatch
):
    monkeypatch.setitem(ENGINES, broken.__name__, broken())
    with pytest.raises(AssertionError, match=f"^{output}: "):
        check(broken.__name__, Case("aligned", (1, 1), 0.5, dtype, "masked", -1))


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


@EVERY_ENGINE
@AXES
@DTYPES
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_mask_may_leave_rows_and_columns_of_blocks_empty_or_full(engine, axis, dtype, pattern):
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


@EVERY_ENGINE
@AXES
@DTYPES
@pytest.mark.parametrize("backward", ["masked", "straight_through"])
def test_a_dropped_weight_reaches_nothing_even_when_it_is_not_finite(engine, axis, dtype, backward):
    mask = small_mask(PATTERNS["a square with an empty row and column on each side"])
    skip_unless_able(engine, mask, axis, dtype)
    operands = draw(SMALL, axis, dtype, mask)
    dropped = ~np.asarray(mask.dense())
    kernel = np.array(operands.kernel)
    kernel[dropped] = np.resize([np.nan, np.inf, -np.inf], dropped.sum())
    actual = compiled(operands._replace(kernel=jnp.asarray(kernel)), engine, axis, backward)
    finite = compiled(operands, engine, axis, backward)
    for name, got, want in zip(OUTPUTS, actual, finite, strict=True):
        assert np.all(np.isfinite(want)), name
        np.testing.assert_array_equal(got, want, err_msg=name)


@EVERY_ENGINE
@AXES
@DTYPES
def test_a_full_mask_is_the_dense_product_bit_for_bit(engine, axis, dtype):
    shape = SMALL._replace(batch=(40,), groups=(40,))
    operands = draw(shape, axis, dtype, small_mask(np.arange(16)))
    no_mask = operands._replace(mask=None)  # pyright: ignore[reportArgumentType]
    full, want = (compiled(o, engine, axis, "masked") for o in (operands, no_mask))
    for got, wanted in zip(full, want, strict=True):
        np.testing.assert_array_equal(got, wanted)
    # Gradients too are summed over all samples in float32.
    assert_conforms(full, expected(operands, axis, "masked"), dtype)


@EVERY_ENGINE
@AXES
def test_a_new_mask_of_an_engine_runs_the_same_program(engine, axis):
    masks = [small_mask(kept) for kept in PATTERNS.values()]
    skip_unless_able(engine, masks[0], axis, "float32")
    operands = draw(SMALL, axis, "float32", masks[0])
    traces = []

    @jax.jit
    def run(operands: Operands) -> tuple[jax.Array, ...]:
        traces.append(operands)
        return value_and_gradients(operands, engine, axis, "masked")

    outcomes = {np.asarray(run(operands._replace(mask=mask))[0]).tobytes() for mask in masks}
    assert (len(traces), len(outcomes)) == (1, len(masks))


@EVERY_ENGINE
@AXES
@pytest.mark.parametrize("is_compiled", [True, False], ids=["jit", "no jit"])
def test_an_engine_has_the_gradient_of_a_scalar_with_and_without_jit(engine, axis, is_compiled):
    mask = small_mask(PATTERNS["one block in each row and column"])
    skip_unless_able(engine, mask, axis, "float32")
    operands = draw(SMALL, axis, "float32", mask)

    def loss(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = sparse_linear(x, kernel, bias, axis=axis, mask=mask, engine=engine)
        return jnp.vdot(y, operands.dy), y

    gradient = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    (_, y), gradients = (jax.jit(gradient) if is_compiled else gradient)(*operands[:3])
    assert_conforms((y, *gradients), expected(operands, axis, "masked"), "float32")


@EVERY_ENGINE
@AXES
@pytest.mark.parametrize("backward", BACKWARDS)
def test_mapping_an_engine_over_x_alone_is_a_longer_batch(engine, axis, backward):
    mask = small_mask(PATTERNS["one block in each row and column"])
    skip_unless_able(engine, mask, axis, "float32")
    shape = SMALL._replace(batch=(3, 5), groups=(3, 2))
    operands = draw(shape, axis, "float32", mask)

    def call(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        return sparse_linear(
            x, kernel, bias, axis=axis, mask=mask, backward=backward, engine=engine
        )

    @jax.jit
    def mapped(x, kernel, bias, dy):
        y, pull = jax.vjp(jax.vmap(call, in_axes=(0, None, None)), x, kernel, bias)
        return y, *pull(dy)

    actual = mapped(*operands[:3], operands.dy)
    assert_conforms(actual, expected(operands, axis, backward), "float32")


@EVERY_ENGINE
@AXES
@pytest.mark.parametrize("backward", BACKWARDS)
def test_mapping_an_engine_over_layers_is_one_layer_after_another(engine, axis, backward):
    masks = small_mask(np.array(list(PATTERNS.values())))
    skip_unless_able(engine, masks, axis, "float32")
    stacked = draw(SMALL, axis, "float32", masks, stack=(len(PATTERNS),))
    one = functools.partial(value_and_gradients, engine=engine, axis=axis, backward=backward)
    actual = jax.jit(jax.vmap(one))(stacked)
    for index in range(len(PATTERNS)):
        layer, found = jax.tree.map(lambda a, i=index: a[i], (stacked, actual))
        assert_conforms(found, expected(layer, axis, backward), "float32")


@EVERY_ENGINE
@AXES
def test_scanning_an_engine_over_layers_is_one_layer_after_another(engine, axis):
    size, block, depth = 64, (16, 16), 3
    shape = Shape((size, size), (5,), (2,), 3)
    kept = jnp.asarray([[0, 1, 2, 3, 9], [3, 7, 8, 11, 15], [0, 5, 10, 12, 15]], jnp.int32)
    masks = BlockMask(kept, shape.kernel, block)
    skip_unless_able(engine, masks, axis, "float32")
    layers = draw(shape, axis, "float32", masks, stack=(depth,))
    x, kernels, dy = layers.x[0], layers.kernel / math.sqrt(size), layers.dy[0]

    @functools.partial(jax.jit, static_argnums=0)
    def run(engine: str, x, kernels, biases, masks, dy) -> tuple:
        def step(x, layer):
            kernel, bias, mask = layer
            return sparse_linear(x, kernel, bias, axis=axis, mask=mask, engine=engine), None

        def stack(x, kernels, biases):
            return jax.lax.scan(step, x, (kernels, biases, masks))[0]

        y, pull = jax.vjp(stack, x, kernels, biases)
        return y, *pull(dy)

    operands = (x, kernels, layers.bias, masks, dy)
    actual = run(engine, *operands)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: np.asarray(a, np.float64), (x, kernels, layers.bias))
        wanted = run("reference", *wide, masks, np.asarray(dy, np.float64))
        wanted = [np.asarray(a) for a in wanted]
    for name, got, want in zip(OUTPUTS, actual, wanted, strict=True):
        assert want.dtype == np.float64
        # Up to 2 * depth products one after another, each as in `expected`; none grows the error.
        scale = 2 * depth * 4 * np.finfo(np.float32).eps / 2 * math.sqrt(size)
        np.testing.assert_allclose(got, want, rtol=0, atol=scale * abs(want).max(), err_msg=name)
    dropped = ~np.asarray(jax.vmap(BlockMask.dense)(masks))
    np.testing.assert_array_equal(np.asarray(actual[2])[dropped], 0)


def sharded(
    way: str, operands: Operands, engine: str, axis: Axis, backward: Any
) -> tuple[jax.Array, ...]:
    """The arrays y, dx, dW, db with x in two halves and the layer on both of two devices."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    half, whole = PartitionSpec("data"), PartitionSpec()
    x, kernel, bias, mask, dy = operands

    def call(x, kernel, bias, mask):
        return sparse_linear(
            x, kernel, bias, axis=axis, mask=mask, backward=backward, engine=engine
        )

    if way == "gradient of a sharded function":
        split = jax.shard_map(call, mesh=mesh, in_specs=(half, whole, whole, whole), out_specs=half)
        y, pull = jax.vjp(lambda x, w, b: split(x, w, b, mask), x, kernel, bias)
        return y, *pull(dy)

    is_checked = way == "gradient inside, of a loss summed over devices"

    def inside(x, kernel, bias, mask, dy):
        def loss(x, kernel, bias):
            y = call(x, kernel, bias, mask)
            mine = jnp.vdot(y, dy)
            return jax.lax.psum(mine, "data") if is_checked else mine, y

        gradient = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)
        (dx, dw, db), y = gradient(x, kernel, bias)
        # Without the check of what varies, gradients stay those of one device.
        return y, dx, *((dw, db) if is_checked else jax.lax.psum((dw, db), "data"))

    split = jax.shard_map(
        inside,
        mesh=mesh,
        in_specs=(half, whole, whole, whole, half),
        out_specs=(half, half, whole, whole),
        check_vma=is_checked,
    )
    return split(x, kernel, bias, mask, dy)


WAYS = (
    "gradient of a sharded function",
    "gradient inside, of a loss summed over devices",
    "gradient inside, summed over devices",
)


def check_on_two_devices(engine: str) -> None:
    """Raises AssertionError unless halves of a batch give the gradients of the whole."""
    assert jax.device_count() == 2
    if engine in ("mosaic", "triton"):
        # This process has no fixtures.
        ENGINES[engine] = {"mosaic": Mosaic, "triton": Triton}[engine](interpret=True)
    shape = SMALL._replace(batch=(6,))
    mask = small_mask(PATTERNS["a square with an empty row and column on each side"])
    full = small_mask(np.arange(16))
    modes: list[tuple[str, str, BlockMask]] = [(WAYS[0], mode, mask) for mode in BACKWARDS]
    modes += [(way, "masked", mask) for way in WAYS[1:]] + [(WAYS[0], "masked", full)]
    for (way, backward, mask), axis in itertools.product(modes, AXIS_VALUES):
        print(f"{way}, axis {axis}, backward {backward}, {mask.n_kept} blocks", flush=True)
        operands = draw(shape, axis, "float32", mask)
        run = jax.jit(functools.partial(sharded, way), static_argnums=(1, 2, 3))
        if engine == "mosaic" or (engine == "triton" and way != WAYS[-1]):
            # JAX interprets no kernel where it checks what varies; it checks the trace itself. Of
            # `mosaic` it interprets the kernels of all devices of a process in one memory, and
            # fails if one ends while barriers of another are there.
            run.trace(operands, engine, axis, backward)
            continue
        actual = run(operands, engine, axis, backward)
        # A sum that is counted twice is a whole gradient away from what is expected.
        assert_conforms(actual, expected(operands, axis, backward), "float32")


def print_checks_on_two_devices() -> None:
    """Prints a JSON object: of every engine, why it fails on two devices, empty if it does not."""
    found = {}
    for engine in ENGINES:
        print(engine, flush=True)
        found[engine] = ""
        try:
            check_on_two_devices(engine)
        except Exception:
            found[engine] = traceback.format_exc()
    print(json.dumps(found))


@pytest.fixture(scope="module")
def checks_on_two_devices() -> dict[str, str]:
    """What a process with two devices found, one for all engines."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    program = "import test_conformance as t; t.print_checks_on_two_devices()"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@EVERY_ENGINE
def test_an_engine_has_the_same_gradients_with_the_batch_split_over_two_devices(
    engine, checks_on_two_devices
):
    for axis in AXIS_VALUES:
        skip_unless_able(engine, small_mask((0, 1, 2, 3)), axis, "float32", "cpu")
    assert checks_on_two_devices[engine] == ""
