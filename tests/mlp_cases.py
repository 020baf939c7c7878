"""Two layers with a GELU between them: cases, operands, and what they come to in float64."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_mlp
from native import needs_native

from sparsemlp import BlockMask
from sparsemlp.mlp import Linear, sparse_mlp

IN, HIDDEN, OUT = 64, 128, 96
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


FUSED = Case("equal", "both", True, True, "both", "float32", (3, 5))
