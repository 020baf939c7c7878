"""Two layers with a GELU between them, fused and step by step, against float64 NumPy."""

import dataclasses
import functools
import itertools
import math
import os
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_mlp
from jax.sharding import AxisType, PartitionSpec

from pallas_kernels import ENGINES, SparseLayer, Triton
from sparsemlp import BlockMask
from sparsemlp.errors import InputError
from sparsemlp.mlp import Linear, sparse_mlp

EPS = float(np.finfo(np.float32).eps)
IN, HIDDEN, OUT = 64, 128, 96
NATIVE = ENGINES["cpu"].reason_against(
    SparseLayer((IN, HIDDEN), (32, 32), 1, -1, "float32"), jax.default_backend()
)
needs_native = pytest.mark.skipif(NATIVE is not None, reason=str(NATIVE))
BOTH_ENGINES = pytest.mark.parametrize(
    "engine", [pytest.param("cpu", marks=needs_native), "reference"]
)
ALL_ENGINES = pytest.mark.parametrize(
    "engine", [pytest.param("cpu", marks=needs_native), "triton", "reference"]
)


BLOCKS = {
    "equal": ((32, 32), (32, 32)),
    "small": ((16, 8), (32, 16)),
    "a block of W2 takes hidden units of two blocks of W1": ((32, 16), (16, 64)),
    "a block of W1 gives hidden units to two blocks of W2": ((64, 16), (16, 32)),
}
DROPPED = ("some", "hidden columns of W1", "hidden rows of W2", "both")
FACTORS: tuple[tuple[Any, ...], ...] = (
    tuple(BLOCKS),
    DROPPED,
    (True, False),
    (True, False),
    ("none", "before", "after", "both"),
    ("float32", "bfloat16"),
    ((), (37,), (2, 3, 4)),
)


class Case(NamedTuple):
    """One choice of each factor."""

    blocks: str
    dropped: str
    with_bias: bool
    residual: bool
    scales: str
    dtype: str
    batch: tuple[int, ...]


def case(*choice: int) -> Case:
    """The case of one index into each factor."""
    return Case(*(values[index] for values, index in zip(FACTORS, choice, strict=True)))


# Every two choices meet in one of these.
CASES = [
    case(0, 0, 0, 0, 0, 0, 0),
    case(0, 1, 1, 1, 1, 1, 1),
    case(1, 2, 0, 0, 2, 1, 2),
    case(2, 3, 1, 1, 3, 0, 2),
    case(3, 0, 1, 1, 2, 1, 0),
    case(3, 1, 0, 0, 3, 0, 1),
    case(1, 2, 1, 1, 0, 0, 1),
    case(2, 3, 0, 0, 1, 1, 0),
    case(0, 2, 0, 1, 3, 1, 0),
    case(0, 3, 1, 0, 2, 0, 1),
    case(1, 0, 0, 0, 1, 0, 2),
    case(2, 1, 0, 0, 0, 1, 2),
    case(1, 1, 0, 0, 2, 0, 0),
    case(2, 0, 0, 0, 2, 0, 1),
    case(3, 2, 0, 0, 1, 0, 2),
    case(3, 3, 0, 0, 0, 0, 0),
    case(0, 0, 0, 0, 3, 0, 2),
    case(1, 3, 0, 0, 3, 0, 0),
    case(2, 2, 0, 0, 0, 0, 0),
]


def mask_of(grid: np.ndarray, block: tuple[int, int]) -> BlockMask:
    rows, cols = block
    kept = jnp.asarray(np.flatnonzero(grid), jnp.int32)
    return BlockMask(kept, (grid.shape[0] * cols, grid.shape[1] * rows), block)


class Operands(NamedTuple):
    """What is differentiated, by name; both masks; the gradient of the result."""

    arrays: dict[str, Any]
    masks: tuple[Any, Any]
    dy: Any


def draw(choice: Case, stack: tuple[int, ...] = ()) -> Operands:
    """Random operands, hidden units of a size at which GELU bends; leading axes `stack`."""
    rng, kept = np.random.default_rng(0), 0.6
    out = IN if choice.residual else OUT
    first, second = BLOCKS[choice.blocks]
    grids = [
        rng.random((n_in // cols, n_out // rows)) < kept
        for n_in, n_out, (rows, cols) in ((IN, HIDDEN, first), (HIDDEN, out, second))
    ]
    for grid in grids:
        grid[-1, -1], grid[0, 0] = True, False
    if choice.dropped in ("hidden columns of W1", "both"):
        grids[0][:, :-1:2] = False
    if choice.dropped in ("hidden rows of W2", "both"):
        grids[1][1:-1:2] = False
        grids[1][0] = False

    def normal(*shape: int, scale: float = 1.0) -> jax.Array:
        return jnp.asarray(scale * rng.normal(size=(*stack, *shape)), choice.dtype)

    arrays = {
        "x": normal(*choice.batch, IN),
        "w1": normal(IN, HIDDEN, scale=1 / math.sqrt(IN * kept)),
        "w2": normal(HIDDEN, out, scale=1 / math.sqrt(HIDDEN * kept)),
    }
    if choice.with_bias:
        arrays |= {"b1": normal(HIDDEN), "b2": normal(out)}
    if choice.scales in ("before", "both"):
        arrays |= {"scale": normal(IN), "shift": normal(IN)}
    if choice.scales in ("after", "both"):
        arrays["after"] = normal(out)
    masks = (mask_of(grids[0], first), mask_of(grids[1], second))
    return Operands(arrays, masks, normal(*choice.batch, out))


def apply(
    arrays: dict[str, Any],
    masks: tuple[Any, Any],
    *,
    engine: str,
    residual: bool,
    backwards: tuple[Any, Any] = ("masked", "masked"),
) -> jax.Array:
    """`sparse_mlp` of arrays by name."""
    first, second = (
        Linear(arrays[f"w{index}"], arrays.get(f"b{index}"), mask, backward)
        for index, mask, backward in zip((1, 2), masks, backwards, strict=True)
    )
    return sparse_mlp(
        arrays["x"],
        first,
        second,
        before=(arrays["scale"], arrays["shift"]) if "scale" in arrays else None,
        after=arrays.get("after"),
        residual=residual,
        engine=engine,
    )


def value_and_gradients(operands: Operands, **options: Any) -> dict[str, jax.Array]:
    """The result `y`, and the gradient of each array by its name."""
    y, pull = jax.vjp(lambda a: apply(a, operands.masks, **options), operands.arrays)
    (gradients,) = pull(operands.dy)
    return {"y": y, **{f"d{name}": gradient for name, gradient in gradients.items()}}


compiled = jax.jit(value_and_gradients, static_argnames=("engine", "residual", "backwards"))


def expected(
    operands: Operands, residual: bool, backwards: tuple[str, str] = ("masked", "masked")
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The same in float64, each with its mass; see `reference_mlp`."""
    arrays = {name: np.asarray(a).astype(np.float64) for name, a in operands.arrays.items()}
    n_in, n_out = arrays["w1"].shape[0], arrays["w2"].shape[1]
    first, second = (
        reference_mlp.Layer(
            kernel := arrays[f"w{index}"],
            arrays.get(f"b{index}", np.zeros(kernel.shape[1])),
            np.ones(kernel.shape, bool) if mask is None else np.asarray(mask.dense()),
            backward,
        )
        for index, mask, backward in zip((1, 2), operands.masks, backwards, strict=True)
    )
    found = reference_mlp.mlp(
        arrays["x"],
        np.asarray(operands.dy).astype(np.float64),
        first,
        second,
        arrays.get("scale", np.ones(n_in)),
        arrays.get("shift", np.zeros(n_in)),
        arrays.get("after", np.ones(n_out)),
        residual,
    )
    return {"y": found["y"], **{f"d{name}": found[f"d{name}"] for name in arrays}}


def assert_conforms(
    actual: dict[str, Any], want: dict[str, tuple[np.ndarray, np.ndarray]], dtype: Any
) -> None:
    assert set(actual) == set(want)
    n_rows = want["y"][0].size // want["y"][0].shape[-1]
    e = reference_mlp.share(dtype, max(HIDDEN + 1, n_rows))
    for name, got in actual.items():
        assert got.dtype == jnp.dtype(dtype), name
        reference_mlp.assert_near(got, want[name], e, name)


def test_every_two_choices_meet_in_a_case():
    for (i, first), (j, second) in itertools.combinations(enumerate(FACTORS), 2):
        met = {(chosen[i], chosen[j]) for chosen in CASES}
        assert met == set(itertools.product(first, second))


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine `triton` runs where there is no GPU."""
    if jax.default_backend() != "gpu":
        monkeypatch.setitem(ENGINES, "triton", Triton(interpret=True))


OF_TRITON = [choice for choice in CASES if choice.blocks != "small"]
"""A side of a block is 16 there at least."""
FEW_OF_TRITON = [CASES[1], CASES[3], CASES[4]]
"""Each blocks, dtype and batch once: an interpreted kernel takes seconds to compile."""


def name_of(choice: Case) -> str:
    return "-".join(map(str, choice))


@needs_native
@pytest.mark.parametrize("choice", CASES, ids=name_of)
def test_fused_layers_have_the_values_and_gradients_of_their_definition(choice):
    check_fused("cpu", choice)


@needs_native
@pytest.mark.parametrize("choice", CASES, ids=name_of)
def test_fused_layers_have_straight_through_gradients(choice):
    """Those of whole kernels, constant hidden units among them."""
    operands, both = draw(choice), ("straight_through", "straight_through")
    actual = compiled(operands, engine="cpu", residual=choice.residual, backwards=both)
    assert_conforms(actual, expected(operands, choice.residual, both), choice.dtype)
    for mask, name in zip(operands.masks, ("dw1", "dw2"), strict=True):
        assert np.any(np.asarray(actual[name])[~np.asarray(mask.dense())] != 0)


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param(choice, marks=[] if choice in FEW_OF_TRITON else pytest.mark.exhaustive)
        for choice in OF_TRITON
    ],
    ids=name_of,
)
def test_fused_layers_of_a_gpu_have_them_too(choice, interpreted):
    check_fused("triton", choice)


def check_fused(engine: str, choice: Case) -> None:
    """Raises AssertionError unless the engine computes the fused layers of `choice`."""
    operands = draw(choice)
    actual = compiled(operands, engine=engine, residual=choice.residual)
    assert_conforms(actual, expected(operands, choice.residual), choice.dtype)
    for mask, name in zip(operands.masks, ("dw1", "dw2"), strict=True):
        dropped = ~np.asarray(mask.dense())
        np.testing.assert_array_equal(np.asarray(actual[name])[dropped], 0)


@pytest.mark.parametrize("choice", CASES[:5], ids=name_of)
def test_step_by_step_is_the_definition_too(choice):
    choice = choice._replace(dtype="float32")
    operands = draw(choice)
    actual = compiled(operands, engine="reference", residual=choice.residual)
    assert_conforms(actual, expected(operands, choice.residual), choice.dtype)


def forget_a_block(operands: Operands, which: int) -> Operands:
    masks = list(operands.masks)
    masks[which] = dataclasses.replace(masks[which], kept=masks[which].kept[:-1])
    return operands._replace(masks=tuple(masks))


def forget(name: str, operands: Operands) -> Operands:
    return operands._replace(
        arrays={**operands.arrays, name: jnp.zeros_like(operands.arrays[name])}
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "change",
    [
        functools.partial(forget_a_block, which=0),
        functools.partial(forget_a_block, which=1),
        functools.partial(forget, "shift"),
        functools.partial(forget, "b1"),
        functools.partial(forget, "b2"),
    ],
    ids=["block of W1", "block of W2", "shift", "b1", "b2"],
)
def test_a_result_that_lacks_one_operand_does_not_pass(change, dtype):
    """In bfloat16 as well: what is compared is float64 rounded to it."""
    choice = Case("equal", "both", True, True, "both", dtype, (37,))
    operands = draw(choice)
    want = expected(operands, True)
    right, wrong = (
        {name: jnp.asarray(value, dtype) for name, (value, _) in found.items()}
        for found in (want, expected(change(operands), True))
    )
    assert_conforms(right, want, dtype)
    with pytest.raises(AssertionError):
        assert_conforms(wrong, want, dtype)


FUSED = Case("equal", "both", True, True, "both", "float32", (3, 5))


@needs_native
@pytest.mark.parametrize("constant", [False, True], ids=["computed", "constant"])
def test_the_native_gelu_and_its_derivative_are_exact(constant):
    """Through layers that are the identity; a dropped block of W1 leaves GELU of the bias."""
    x = np.linspace(-12, 12, 37 * IN).reshape(37, IN).astype(np.float32)
    eye, kept = jnp.eye(IN), mask_of(np.eye(IN // 32, dtype=bool), (32, 32))

    def identity(x: jax.Array) -> jax.Array:
        return sparse_mlp(x, Linear(eye, None, kept), Linear(eye, None, kept), engine="cpu")

    def of_the_bias(bias: jax.Array) -> jax.Array:
        # Only one half of the hidden units is constant at a time.
        halves = [
            sparse_mlp(
                jnp.zeros(IN),
                Linear(eye, bias, mask_of(np.array(grid, bool), (32, 32))),
                Linear(eye, None, kept),
                engine="cpu",
            )
            for grid in ([[1, 0], [0, 0]], [[0, 0], [0, 1]])
        ]
        return jnp.concatenate([halves[1][: IN // 2], halves[0][IN // 2 :]])

    compute = jax.vmap(of_the_bias) if constant else identity
    y, pull = jax.vjp(compute, jnp.asarray(x))
    value, derivative = reference_mlp.gelu(x.astype(np.float64))
    # As of the other GELU; the density is multiplied by x, its exponent errs by eps x^2 / 2.
    tolerance = 4 * EPS * np.maximum(np.abs(x), 1)
    assert np.all(abs(np.asarray(y, np.float64) - value) <= tolerance)
    (dx,) = pull(jnp.ones_like(y))
    assert np.all(abs(np.asarray(dx, np.float64) - derivative) <= tolerance)


@pytest.fixture
def not_fused(monkeypatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("fused")

    monkeypatch.setattr("sparsemlp.mlp._fused", refuse)


@pytest.mark.parametrize("engine", [pytest.param("cpu", marks=needs_native), "triton"])
def test_the_fixture_does_tell_a_fused_call(engine, not_fused, interpreted):
    operands = draw(FUSED)
    with pytest.raises(AssertionError, match=r"^fused$"):
        apply(operands.arrays, operands.masks, engine=engine, residual=True)


def test_auto_does_not_fuse_by_an_engine_that_was_not_measured(not_fused, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    apply(draw(FUSED).arrays, draw(FUSED).masks, engine="auto", residual=True)


@needs_native
@pytest.mark.parametrize(
    ("backwards", "dense"),
    [
        (("dense", "masked"), None),
        (("masked", "straight_through"), None),
        (("masked", "masked"), 0),
        (("masked", "masked"), 1),
    ],
    ids=["dense backward", "straight through", "no first mask", "full second mask"],
)
def test_other_backward_passes_and_dense_layers_go_step_by_step(backwards, dense, not_fused):
    operands = draw(FUSED)
    masks = list(operands.masks)
    if dense == 0:
        masks[0] = None
    if dense == 1:
        masks[1] = mask_of(np.ones((HIDDEN // 32, IN // 32), bool), (32, 32))
    operands = operands._replace(masks=(masks[0], masks[1]))
    actual = compiled(operands, engine="cpu", residual=True, backwards=backwards)
    assert_conforms(actual, expected(operands, True, backwards), "float32")


def test_x_cannot_be_added_to_a_result_of_another_width():
    operands = draw(FUSED._replace(residual=False))
    for engine in ("auto", "reference"):
        with pytest.raises(InputError) as caught:
            apply(operands.arrays, operands.masks, engine=engine, residual=True)
        for part in ("(3, 5, 64)", "96 features", "residual=False"):
            assert part in str(caught.value)


@BOTH_ENGINES
@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("x", (4, 63), "x of shape (4, 63) does not fit the kernel"),
        ("x", (), "x of shape ()"),
        ("w1", (IN, 96), "the mask is for a kernel [in, out] = (64, 128), not (64, 96)"),
        ("w2", (HIDDEN, 32), "the mask is for a kernel [in, out] = (128, 96), not (128, 32)"),
        ("b1", (1,), "bias of shape (1,) does not fit 128 outputs"),
        ("b2", (1,), "bias of shape (1,) does not fit 96 outputs"),
    ],
)
def test_shapes_that_do_not_fit_are_named(engine, name, shape, says, unchecked):
    """A bias of one entry is not spread over all by the scales that are folded into it."""
    of_bias = name.startswith("b")
    scales = "both" if of_bias else "none"
    operands = draw(FUSED._replace(residual=False, scales=scales, with_bias=of_bias))
    arrays = {**operands.arrays, name: jnp.ones(shape)}
    with pytest.raises(InputError) as caught:
        apply(arrays, operands.masks, engine=engine, residual=False)
    assert says in str(caught.value)


@BOTH_ENGINES
def test_layers_that_do_not_follow_each_other_are_named(engine):
    operands = draw(FUSED)
    arrays = {**operands.arrays, "w2": jnp.ones((IN, IN)), "b2": jnp.ones(IN)}
    masks = (operands.masks[0], mask_of(np.eye(2, dtype=bool), (32, 32)))
    with pytest.raises(InputError, match=r"x of shape .* does not fit the kernel"):
        apply(arrays, masks, engine=engine, residual=True)


@BOTH_ENGINES
@pytest.mark.parametrize("wide", [("scale", "shift"), ("after",), ("x",), ("b1",)], ids="-".join)
def test_operands_of_two_dtypes_meet_in_the_wider_one(engine, wide):
    """The parameters of an Affine stay float32 beside kernels in bfloat16."""
    operands = draw(FUSED._replace(dtype="bfloat16"))
    arrays = {
        name: a.astype(jnp.float32) if name in wide else a for name, a in operands.arrays.items()
    }
    y, pull = jax.vjp(lambda a: apply(a, operands.masks, engine=engine, residual=True), arrays)
    (gradients,) = pull(operands.dy.astype(y.dtype))
    assert y.dtype == jnp.float32
    assert {name: g.dtype for name, g in gradients.items()} == {
        name: a.dtype for name, a in arrays.items()
    }
    value, mass = expected(operands, True)["y"]
    reference_mlp.assert_near(y, (value, mass), reference_mlp.share(jnp.bfloat16, HIDDEN), "y")


@ALL_ENGINES
def test_a_dropped_weight_reaches_nothing_even_when_it_is_not_finite(engine, interpreted):
    operands = draw(FUSED)
    arrays = dict(operands.arrays)
    for name, mask in zip(("w1", "w2"), operands.masks, strict=True):
        kernel, dropped = np.array(arrays[name]), ~np.asarray(mask.dense())
        kernel[dropped] = np.resize([np.nan, np.inf, -np.inf], dropped.sum())
        arrays[name] = jnp.asarray(kernel)
    actual = compiled(operands._replace(arrays=arrays), engine=engine, residual=True)
    finite = compiled(operands, engine=engine, residual=True)
    for name, want in finite.items():
        assert np.all(np.isfinite(want)), name
        np.testing.assert_array_equal(actual[name], want, err_msg=name)


@BOTH_ENGINES
def test_a_number_that_is_not_finite_is_not_hidden(engine):
    """Training stops on what is not finite, so the panels must not clip it."""
    operands = draw(FUSED)
    for bad in (np.nan, np.inf):
        arrays = {**operands.arrays, "x": operands.arrays["x"].at[1, 2, -1].set(bad)}
        actual = compiled(operands._replace(arrays=arrays), engine=engine, residual=True)
        assert not np.all(np.isfinite(actual["y"][1, 2]))
        assert np.all(np.isfinite(np.delete(np.asarray(actual["y"]).reshape(15, -1), 7, axis=0)))
        assert not np.all(np.isfinite(actual["dw1"]))


@ALL_ENGINES
def test_an_empty_batch_has_no_result_and_gradients_of_zero(engine, interpreted):
    operands = draw(FUSED._replace(batch=(0, 5)))
    actual = compiled(operands, engine=engine, residual=True)
    assert actual["y"].shape == actual["dx"].shape == (0, 5, IN)
    for name in operands.arrays:
        np.testing.assert_array_equal(actual[f"d{name}"], np.zeros_like(operands.arrays[name]))


@needs_native
@pytest.mark.parametrize("is_compiled", [True, False], ids=["jit", "no jit"])
def test_fused_layers_have_the_gradient_of_a_scalar_with_and_without_jit(is_compiled):
    operands = draw(FUSED)

    def loss(arrays: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
        y = apply(arrays, operands.masks, engine="cpu", residual=True)
        return jnp.vdot(y, operands.dy), y

    gradient = jax.value_and_grad(loss, has_aux=True)
    (_, y), gradients = (jax.jit(gradient) if is_compiled else gradient)(operands.arrays)
    actual = {"y": y, **{f"d{name}": g for name, g in gradients.items()}}
    assert_conforms(actual, expected(operands, True), "float32")


@needs_native
def test_mapping_fused_layers_over_x_alone_is_a_longer_batch():
    operands = draw(FUSED)

    def one(x: jax.Array, others: dict[str, Any]) -> jax.Array:
        return apply({**others, "x": x}, operands.masks, engine="cpu", residual=True)

    @jax.jit
    def mapped(arrays: dict[str, Any], dy: jax.Array) -> dict[str, jax.Array]:
        others = {name: a for name, a in arrays.items() if name != "x"}
        y, pull = jax.vjp(jax.vmap(one, in_axes=(0, None)), arrays["x"], others)
        dx, gradients = pull(dy)
        return {"y": y, "dx": dx, **{f"d{name}": g for name, g in gradients.items()}}

    actual = mapped(operands.arrays, operands.dy)
    assert_conforms(actual, expected(operands, True), "float32")


def stacked_masks(choice: Case, n: int) -> tuple[BlockMask, BlockMask]:
    """The masks of `n` pairs of layers, all different."""
    rolled = []
    for mask in draw(choice).masks:
        kept = np.stack([np.sort((np.asarray(mask.kept) + i) % mask.n_blocks) for i in range(n)])
        rolled.append(dataclasses.replace(mask, kept=jnp.asarray(kept, jnp.int32)))
    return rolled[0], rolled[1]


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("cpu", marks=needs_native),
        pytest.param("triton", marks=pytest.mark.exhaustive),
    ],
)
def test_mapping_fused_layers_over_all_is_one_pair_after_another(engine, interpreted):
    n = 3
    stacked = draw(FUSED, stack=(n,))._replace(masks=stacked_masks(FUSED, n))
    one = functools.partial(value_and_gradients, engine=engine, residual=True)
    actual = jax.jit(jax.vmap(one))(stacked)
    for index in range(n):
        pair, found = jax.tree.map(lambda a, i=index: a[i], (stacked, actual))
        assert_conforms(found, expected(pair, True), "float32")


@needs_native
def test_scanning_fused_layers_is_one_pair_after_another():
    n = 2
    stacked = draw(FUSED, stack=(n,))._replace(masks=stacked_masks(FUSED, n))
    layers = {name: a for name, a in stacked.arrays.items() if name != "x"}
    x, dy = stacked.arrays["x"][0], stacked.dy[0]

    @jax.jit
    def scanned(x: jax.Array, layers: dict[str, Any], masks: Any, dy: jax.Array) -> Any:
        def step(x: jax.Array, layer: Any) -> tuple[jax.Array, jax.Array]:
            arrays, masks = layer
            y = apply({**arrays, "x": x}, masks, engine="cpu", residual=True)
            return y, y

        def stack(x: jax.Array, layers: dict[str, Any]) -> Any:
            return jax.lax.scan(step, x, (layers, masks))

        (_, between), pull = jax.vjp(stack, x, layers)
        return between, *pull((dy, jnp.zeros_like(between)))

    between, dx, gradients = scanned(x, layers, stacked.masks, dy)
    # Each pair is held to what it got from its neighbours, in float32 as it was.
    for index in reversed(range(n)):
        arrays, masks = jax.tree.map(lambda a, i=index: a[i], (layers, stacked.masks))
        arrays = {"x": between[index - 1] if index else x, **arrays}
        want = expected(Operands(arrays, masks, dy), True)
        found = {f"d{name}": g[index] for name, g in gradients.items()}
        found["dx"] = dx if index == 0 else jnp.asarray(want["dx"][0], jnp.float32)
        assert_conforms({"y": between[index], **found}, want, "float32")
        dy = found["dx"]


def kept_for_the_backward_pass(operands: Operands, engine: str) -> set[tuple[int, ...]]:
    """The shapes of all arrays that the backward pass is a closure of."""

    def forward(arrays: dict[str, Any], masks: Any) -> Any:
        return jax.vjp(lambda a: apply(a, masks, engine=engine, residual=True), arrays)[1]

    closure = jax.eval_shape(forward, operands.arrays, operands.masks)
    return {leaf.shape for leaf in jax.tree.leaves(closure)}


def test_nothing_of_the_size_of_the_hidden_units_is_kept_for_the_backward_pass():
    operands = draw(FUSED)

    def hidden(engine: str) -> set[tuple[int, ...]]:
        shapes = kept_for_the_backward_pass(operands, engine)
        assert (3, 5, IN) in shapes
        return {s for s in shapes if HIDDEN in s and math.prod(s) >= 15 * HIDDEN} - {
            (IN, HIDDEN),
            (HIDDEN, IN),
        }

    if NATIVE is None:
        assert hidden("cpu") == set()
    # The same look does find them where they are kept.
    assert (3, 5, HIDDEN) in hidden("reference")


def check_on_two_devices() -> None:
    """Raises AssertionError unless halves of a batch give the gradients of the whole."""
    assert jax.device_count() == 2
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    half, whole = PartitionSpec("data"), PartitionSpec()
    operands = draw(FUSED._replace(batch=(6, 5)))
    want = expected(operands, True)
    placed = {name: half if name == "x" else whole for name in operands.arrays}

    def call(arrays: dict[str, Any], masks: Any) -> jax.Array:
        return apply(arrays, masks, engine="cpu", residual=True)

    def outside(arrays: dict[str, Any], masks: Any, dy: jax.Array) -> Any:
        split = jax.shard_map(call, mesh=mesh, in_specs=(placed, whole), out_specs=half)
        y, pull = jax.vjp(lambda a: split(a, masks), arrays)
        return y, *pull(dy)

    def inside(arrays: dict[str, Any], masks: Any, dy: jax.Array) -> Any:
        def loss(arrays: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
            y = call(arrays, masks)
            return jax.lax.psum(jnp.vdot(y, dy), "data"), y

        gradients, y = jax.grad(loss, has_aux=True)(arrays)
        return y, gradients

    split = jax.shard_map(
        inside, mesh=mesh, in_specs=(placed, whole, half), out_specs=(half, placed)
    )
    for run in (outside, split):
        y, gradients = jax.jit(run)(*operands)
        actual = {"y": y, **{f"d{name}": g for name, g in gradients.items()}}
        assert_conforms(actual, want, "float32")


@needs_native
def test_fused_layers_have_the_same_gradients_with_the_batch_split_over_two_devices():
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import test_mlp as t; t.check_on_two_devices()"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
