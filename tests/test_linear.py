"""The operation and its gradients against float64 NumPy products, along both axes."""

import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp import (
    BlockMask,
    GradientPruning,
    GridMask,
    select_blocks,
    sparse_linear,
)
from sparsemlp.errors import InputError

IN, OUT, CHANNELS, BLOCK, RATIO = 6, 8, 3, (4, 2), 0.6
MODES = ["masked", "dense", "straight_through"]
AXES = pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])


class Problem:
    """Random x, kernel, bias and dy, features last; a mask that is not random."""

    def __init__(self, batch: tuple[int, ...] = (2, CHANNELS), dtype: Any = jnp.float32) -> None:
        rng = np.random.default_rng(0)

        def draw(*shape: int) -> jax.Array:
            return jnp.asarray(rng.normal(size=shape), dtype)

        self.x, self.dy = draw(*batch, IN), draw(*batch, OUT)
        self.kernel, self.bias = draw(IN, OUT), draw(OUT)
        self.mask = BlockMask(jnp.array([0, 3, 4], jnp.int32), (IN, OUT), BLOCK)

    def float64(self) -> tuple[np.ndarray, ...]:
        """The arrays x, kernel, bias, dy and the mask [in, out], as the library sees them."""
        arrays = (self.x, self.kernel, self.bias, self.dy, self.mask.dense())
        return tuple(np.asarray(a).astype(np.float64) for a in arrays)


def turned(a: Any, axis: int) -> Any:
    """From features last to the features on `axis`, and back."""
    return a if axis == -1 else a.swapaxes(-1, -2)


@functools.partial(jax.jit, static_argnames=("axis", "backward"))
def value_and_gradients(x, kernel, bias, mask, dy, axis, backward):
    def call(x, kernel, bias):
        return sparse_linear(x, kernel, bias, axis=axis, mask=mask, backward=backward)

    y, pull = jax.vjp(call, x, kernel, bias)
    return y, *pull(dy)


def products(x, kernel, bias, dy, mask, backward) -> tuple[np.ndarray, ...]:
    """The arrays y, dx, dW, db of the table in `sparse_linear`, features last."""
    rows_x, rows_dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    masked = kernel * mask
    y = x @ masked + bias
    dx = dy @ (kernel if backward == "dense" else masked).T
    dw = rows_x.T @ rows_dy * (mask if backward == "masked" else 1)
    return y, dx, dw, rows_dy.sum(axis=0)


@AXES
@pytest.mark.parametrize("backward", MODES)
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_value_and_gradients_are_the_products_of_the_table(axis, backward, with_bias, dtype):
    problem = Problem(dtype=dtype)
    x, kernel, bias, dy, mask = problem.float64()
    bias = bias if with_bias else np.zeros(OUT)
    expected = products(x, kernel, bias, dy, mask, backward)
    magnitudes = products(abs(x), abs(kernel), abs(bias), abs(dy), mask, backward)
    actual = value_and_gradients(
        turned(problem.x, axis),
        problem.kernel,
        problem.bias if with_bias else None,
        problem.mask,
        turned(problem.dy, axis),
        axis,
        backward,
    )
    assert (actual[3] is None) == (not with_bias)
    # K roundings of random sign, at most, in a sum of K products.
    rounding = 2 * float(jnp.finfo(dtype).eps) * math.sqrt(max(IN + 1, OUT, x.size // IN))
    for index, (got, want, magnitude) in enumerate(zip(actual, expected, magnitudes, strict=True)):
        if got is not None:
            got = turned(got, axis) if index < 2 else got
            assert got.dtype == dtype
            assert got.shape == want.shape
            error = np.abs(np.asarray(got).astype(np.float64) - want)
            assert np.all(error <= rounding * magnitude), ("y", "dx", "dw", "db")[index]


@AXES
def test_masked_is_the_true_gradient_of_the_masked_function(axis):
    problem = Problem()
    x, kernel, bias, _, mask = problem.float64()

    def loss64(x, kernel, bias) -> float:
        return float(np.sin(x @ (kernel * mask) + bias).sum())

    def loss(x, kernel, bias):
        return jnp.sum(jnp.sin(sparse_linear(x, kernel, bias, axis=axis, mask=problem.mask)))

    at = (turned(problem.x, axis), problem.kernel, problem.bias)
    dx, dw, db = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*at)
    step, arrays = 1e-5, [x, kernel, bias]
    # The differences err by step**2; the sums have 6 to 8 terms of magnitude up to about 10.
    tolerance = 4 * np.finfo(np.float32).eps * math.sqrt(8) * 10
    for position, gradient in enumerate((turned(dx, axis), dw, db)):
        differences = np.zeros(gradient.shape)
        for index in np.ndindex(gradient.shape):
            sides = []
            for sign in (1, -1):
                moved = [a.copy() for a in arrays]
                moved[position][index] += sign * step
                sides.append(loss64(*moved))
            differences[index] = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose(gradient, differences, atol=tolerance)


@AXES
def test_only_masked_gives_dropped_weights_a_gradient_of_exactly_zero(axis):
    problem = Problem()
    dropped = ~np.asarray(problem.mask.dense())
    for backward in MODES:
        x, dy = turned(problem.x, axis), turned(problem.dy, axis)
        dw = value_and_gradients(x, problem.kernel, problem.bias, problem.mask, dy, axis, backward)[
            2
        ]
        assert np.all(np.asarray(dw)[~dropped] != 0)
        if backward == "masked":
            np.testing.assert_array_equal(np.asarray(dw)[dropped], 0.0)
        else:
            assert np.all(np.asarray(dw)[dropped] != 0)


@AXES
@pytest.mark.parametrize("backward", MODES)
def test_a_full_mask_and_no_mask_are_the_dense_product_bit_for_bit(axis, backward):
    problem = Problem()
    full = select_blocks(problem.kernel, BLOCK, 0.0)

    @jax.jit
    def dense(x, kernel, bias, dy):
        def call(x, kernel, bias):
            return sparse_linear(x, kernel, bias, axis=axis)

        y, pull = jax.vjp(call, x, kernel, bias)
        return y, *pull(dy)

    x, dy = turned(problem.x, axis), turned(problem.dy, axis)
    expected = dense(x, problem.kernel, problem.bias, dy)
    for mask in (None, full):
        actual = value_and_gradients(x, problem.kernel, problem.bias, mask, dy, axis, backward)
        for got, want in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_full_mask_asks_no_engine(monkeypatch):
    def refuse(*arguments: Any) -> None:
        raise AssertionError("an engine was asked")

    monkeypatch.setattr("sparsemlp.linear.choose_engine", refuse)
    problem = Problem()
    sparse_linear(problem.x, problem.kernel, mask=select_blocks(problem.kernel, BLOCK, 0.0))
    with pytest.raises(AssertionError, match="an engine was asked"):
        sparse_linear(problem.x, problem.kernel, mask=problem.mask)


@AXES
@pytest.mark.parametrize("batch", [(), (4,), (2, 4)], ids=["no batch", "one axis", "two axes"])
def test_any_number_of_leading_axes_is_a_batch(batch, axis):
    # Along tokens the channels are an axis of their own, which is not part of the batch.
    problem = Problem(batch if axis == -1 else (*batch, CHANNELS))
    x, kernel, bias, _, mask = problem.float64()
    y = sparse_linear(
        turned(problem.x, axis), problem.kernel, problem.bias, axis=axis, mask=problem.mask
    )
    magnitude = abs(x) @ abs(kernel) + abs(bias)
    error = np.abs(turned(np.asarray(y, np.float64), axis) - (x @ (kernel * mask) + bias))
    assert np.all(error <= 2 * np.finfo(np.float32).eps * math.sqrt(IN + 1) * magnitude)


@pytest.mark.parametrize("backward", MODES)
def test_tokens_are_features_transposed_by_hand(backward):
    problem = Problem()
    arguments = (problem.kernel, problem.bias, problem.mask)
    along = value_and_gradients(problem.x, *arguments, problem.dy, -1, backward)
    x, dy = turned(problem.x, -2), turned(problem.dy, -2)
    y, dx, dw, db = value_and_gradients(x, *arguments, dy, -2, backward)
    # Two float32 sums of the same at most 8 terms, of magnitude up to about 3 x 3 each.
    tolerance = 4 * np.finfo(np.float32).eps * math.sqrt(8) * 9
    for got, want in zip((turned(y, -2), turned(dx, -2), dw, db), along, strict=True):
        np.testing.assert_allclose(got, want, atol=tolerance)


def rearranged_sizes(function: Any, *arguments: Any) -> list[int]:
    """Sizes of the arrays that a compiled function transposes or copies."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    assert text is not None
    shapes = re.findall(r"= \w+\[([\d,]*)\]\S* (?:transpose|copy)\(", text)
    return [math.prod(int(n) for n in shape.split(",") if n) for shape in shapes]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a statement on XLA's CPU compiler")
@pytest.mark.parametrize("is_masked", [True, False], ids=["masked", "dense"])
def test_mixing_tokens_rearranges_no_activation(is_masked):
    batch, tokens, outputs, channels = 5, 16, 32, 24
    x = jnp.ones((batch, tokens, channels))
    kernel, bias = jnp.ones((tokens, outputs)), jnp.ones(outputs)
    mask = select_blocks(kernel, (8, 8), 0.5) if is_masked else None

    def mix(x, kernel, bias):
        return sparse_linear(x, kernel, bias, axis=-2, mask=mask)

    activations = {batch * tokens * channels, batch * outputs * channels}
    assert not activations & set(rearranged_sizes(mix, x, kernel, bias))
    # The same look does find a transpose where there is one.
    assert activations & set(rearranged_sizes(lambda x: x.transpose(2, 0, 1), x))


def test_a_new_mask_does_not_compile_again():
    problem = Problem()
    traces = []

    @jax.jit
    def call(mask: BlockMask) -> jax.Array:
        traces.append(mask)
        return sparse_linear(problem.x, problem.kernel, mask=mask)

    masks = [BlockMask(jnp.array(ids, jnp.int32), (IN, OUT), BLOCK) for ids in ([0, 1], [2, 5])]
    first, second = (np.asarray(call(mask)) for mask in masks)
    assert len(traces) == 1
    assert not np.allclose(first, second)


def test_mapping_over_a_batch_of_masks_kernels_and_inputs_is_a_loop():
    problem = Problem((4,))
    xs = jnp.stack([problem.x, -2 * problem.x])
    kernels = jnp.stack([problem.kernel, problem.kernel[::-1]])
    masks = jax.vmap(lambda kernel: select_blocks(kernel, BLOCK, RATIO))(kernels)

    def gradient(x, kernel, mask):
        def loss(kernel):
            return jnp.sum(jnp.square(sparse_linear(x, kernel, mask=mask)))

        return jax.grad(loss)(kernel)

    mapped = jax.jit(jax.vmap(gradient))(xs, kernels, masks)
    gradient = jax.jit(gradient)
    for x, kernel, kept, got in zip(xs, kernels, masks.kept, mapped, strict=True):
        want = gradient(x, kernel, BlockMask(kept, (IN, OUT), BLOCK))
        scale = float(jnp.abs(want).max())
        np.testing.assert_allclose(got, want, atol=4 * np.finfo(np.float32).eps * 4 * scale)


def test_scanning_over_layers_with_masks_selected_inside_is_a_loop():
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(2, IN)), jnp.float32)
    kernels = jnp.asarray(rng.normal(size=(3, IN, IN)) / math.sqrt(IN), jnp.float32)

    def step(x, kernel):
        return sparse_linear(x, kernel, mask=select_blocks(kernel, (2, 2), 0.5)), None

    def loss(kernels):
        return jnp.sum(jax.lax.scan(step, x, kernels)[0])

    value, gradient = jax.jit(jax.value_and_grad(loss))(kernels)
    masks = [np.asarray(select_blocks(kernel, (2, 2), 0.5).dense()) for kernel in kernels]
    states = [np.asarray(x, np.float64)]
    masked = [
        np.asarray(kernel, np.float64) * mask for kernel, mask in zip(kernels, masks, strict=True)
    ]
    for kernel in masked:
        states.append(states[-1] @ kernel)
    dy, expected = np.ones_like(states[-1]), []
    for state, kernel, mask in zip(states[-2::-1], masked[::-1], masks[::-1], strict=True):
        expected.insert(0, state.T @ dy * mask)
        dy = dy @ kernel.T
    # Three products one after another, of 6 terms each.
    rounding = 3 * 2 * np.finfo(np.float32).eps * math.sqrt(IN)
    np.testing.assert_allclose(value, states[-1].sum(), atol=rounding * abs(states[-1]).sum() * 4)
    np.testing.assert_allclose(gradient, expected, atol=rounding * np.abs(expected).max() * 4)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@AXES
def test_operands_of_one_dtype_need_no_implicit_promotion(axis, dtype):
    problem = Problem(dtype=dtype)
    x, dy = turned(problem.x, axis), turned(problem.dy, axis)
    with jax.numpy_dtype_promotion("strict"):
        for backward in MODES:
            value_and_gradients(x, problem.kernel, problem.bias, problem.mask, dy, axis, backward)


def test_operands_meet_in_their_common_dtype_and_gradients_keep_their_own():
    problem = Problem()
    x = problem.x.astype(jnp.bfloat16)

    def loss(x, kernel):
        y = sparse_linear(x, kernel, mask=problem.mask)
        assert y.dtype == jnp.float32
        return jnp.sum(y)

    dx, dw = jax.grad(loss, argnums=(0, 1))(x, problem.kernel)
    assert (dx.dtype, dw.dtype) == (jnp.bfloat16, jnp.float32)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x": jnp.ones((4, 5))}, ["x of shape (4, 5)", "6x8", "axis -1 must have 6 entries"]),
        ({"x": jnp.ones((4, 6)), "axis": -2}, ["(4, 6)", "axis -2 must have 6 entries"]),
        ({"x": jnp.ones(6), "axis": -2}, ["(6,)", "axis -2 must have 6 entries"]),
        ({"bias": jnp.ones(6)}, ["bias of shape (6,)", "8 outputs"]),
        ({"kernel": jnp.ones((1, 6, 8))}, ["kernel of shape (1, 6, 8)", "[in, out]"]),
        (
            {"mask": BlockMask(jnp.array([0], jnp.int32), (8, 6), (2, 2))},
            ["mask", "(8, 6)", "(6, 8)"],
        ),
        ({"mask": jnp.ones((6, 8), bool)}, ["mask of type ArrayImpl", "select_blocks"]),
        ({"axis": 0}, ["axis 0", "-1 (features)", "-2 (tokens)"]),
        ({"axis": 1}, ["axis 1", "-1 (features)", "-2 (tokens)"]),
        ({"backward": "unmasked"}, ["backward 'unmasked'", "masked, dense, straight_through"]),
        (
            {"engine": "cuda"},
            ["engine 'cuda' is unknown", "auto, cpu, mosaic, triton, jax-triton, reference"],
        ),
        ({"gradient": GradientPruning(2, 3)}, ["2:3", "8 entries", "8 % 3 = 2", "2, 4, 8"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_input_names_the_value_the_rule_and_the_way_out(changes, says, unchecked):
    good = {"x": jnp.ones((4, IN)), "kernel": jnp.ones((IN, OUT))}
    with pytest.raises(InputError) as caught:
        sparse_linear(**{**good, **changes})
    for part in says:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def grid_mask(mask: BlockMask, backward: str | None = None) -> GridMask:
    """The same blocks as a grid; with a backward mode as data."""
    in_dx_and_dw = {
        None: (None, None),
        "masked": (jnp.bool_(True), jnp.bool_(True)),
        "dense": (jnp.bool_(False), jnp.bool_(False)),
        "straight_through": (jnp.bool_(True), jnp.bool_(False)),
    }
    return GridMask(mask.grid(), mask.kernel_shape, mask.block, *in_dx_and_dw[backward])


@AXES
@pytest.mark.parametrize("backward", MODES)
def test_a_grid_mask_gives_the_bits_of_the_reference_engine(backward, axis):
    problem = Problem()
    arrays = (turned(problem.x, axis), problem.kernel, problem.bias)

    @functools.partial(jax.jit, static_argnames="backward")
    def run(mask, dy, backward):
        def call(*arrays):
            return sparse_linear(
                *arrays, axis=axis, mask=mask, backward=backward, engine="reference"
            )

        y, pull = jax.vjp(call, *arrays)
        return y, *pull(dy)

    dy = turned(problem.dy, axis)
    expected = run(problem.mask, dy, backward)
    # The flags say the mode, whatever the layer says.
    other = MODES[MODES.index(backward) - 1]
    as_data = run(grid_mask(problem.mask, backward), dy, other)
    for found in (run(grid_mask(problem.mask), dy, backward), as_data):
        for a, b in zip(found, expected, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_members_of_different_ratios_and_modes_are_mapped_over():
    problem = Problem()
    ids = [jnp.arange(k, dtype=jnp.int32) for k in (1, 3, 6)]
    masks = [BlockMask(kept, (IN, OUT), BLOCK) for kept in ids]
    grids = [grid_mask(mask, mode) for mask, mode in zip(masks, MODES, strict=True)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *grids)
    run = functools.partial(
        value_and_gradients, problem.x, problem.kernel, problem.bias, dy=problem.dy, axis=-1
    )
    found = jax.vmap(lambda mask: run(mask=mask, backward="masked"))(stacked)
    for index, (mask, mode) in enumerate(zip(masks, MODES, strict=True)):
        expected = run(mask=mask, backward=mode)
        for a, b in zip(found, expected, strict=True):
            scale = float(jnp.max(jnp.abs(b)))
            # Sums of at most 8 products, in another order.
            atol = 8 * np.finfo(np.float32).eps * scale
            np.testing.assert_allclose(a[index], b, rtol=0, atol=atol)


@pytest.mark.parametrize("engine", ["cpu", "triton"])
def test_a_grid_mask_is_for_the_reference_engine_alone(engine):
    problem = Problem()
    with pytest.raises(InputError, match=rf"engine '{engine}' needs .* choose reference or auto"):
        sparse_linear(problem.x, problem.kernel, mask=grid_mask(problem.mask), engine=engine)
