"""The native kernels on operands of ones, of no blocks, no batch and no features."""

import numpy as np
import pytest
from child import run_in_child
from native import needs_native
from native_calls import (
    Call,
    all_of,
    gradient,
    gradient_over_tokens,
    ids,
    mlp,
    mlp_gradient,
    multiply,
    ones,
    over_tokens,
    pruned,
    result,
    transposed,
)

pytestmark = needs_native


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_kept_block_leaves_the_bias_and_gradients_of_zero(dtype):
    none = ids()
    for make in (multiply, over_tokens):
        (y,) = all_of(make, dtype).but(kept=none)()
        np.testing.assert_array_equal(y, np.ones(y.shape, dtype))
        (y,) = all_of(make, dtype).but(kept=none, bias=ones(0).astype(dtype))()
        np.testing.assert_array_equal(y, np.zeros(y.shape, dtype))
    (dx,) = all_of(transposed, dtype).but(kept=none)()
    np.testing.assert_array_equal(dx, np.zeros((5, 8), dtype))
    for make, rows in ((gradient, 5), (gradient_over_tokens, 35)):
        dw, db = all_of(make, dtype).but(kept=none)()
        np.testing.assert_array_equal(dw, np.zeros((8, 6), dtype))
        np.testing.assert_array_equal(db, np.full(6, rows, dtype))
    for kept in ({"kept1": none, "kept2": none}, {"kept2": none}):
        (y,) = all_of(mlp, dtype).but(**kept)()
        np.testing.assert_array_equal(y, np.full((5, 8), 2, dtype))
        dx, dw1, db1, dw2, db2 = all_of(mlp_gradient, dtype).but(**kept)()
        np.testing.assert_array_equal(dx, np.ones((5, 8), dtype))
        assert not np.any(dw1)
        assert not np.any(db1)
        assert not np.any(dw2)
        np.testing.assert_array_equal(db2, np.full(8, 5, dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("positions", [0, 5])
def test_the_pruned_call_that_is_made_wrong_elsewhere_is_right(dtype, positions):
    call = all_of(pruned, dtype)
    (dx,) = call.but(positions=np.int64(positions))()
    # Of equal magnitudes the first 2 of 3 are kept, and the last column loses all it had.
    np.testing.assert_array_equal(dx, np.full((10, 8), 4, dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_empty_batch_gives_empty_results_and_gradients_of_zero(dtype):
    rows = {
        multiply: {"x": ones(0, 8), "y": result(0, 6)},
        over_tokens: {"x": ones(0, 8, 7), "y": result(0, 6, 7)},
        transposed: {"x": ones(3, 0, 6), "y": result(3, 0, 8)},
        gradient: {"x": ones(0, 8), "dy": ones(0, 6)},
        gradient_over_tokens: {"x": ones(0, 8, 7), "dy": ones(0, 6, 7)},
        mlp: {"x": ones(0, 8), "y": result(0, 8)},
        mlp_gradient: {"x": ones(0, 8), "dy": ones(0, 8), "dx": result(0, 8)},
    }
    for make, changes in rows.items():
        for found in all_of(lambda m=make, c=changes: m().but(**c), dtype)():
            np.testing.assert_array_equal(found, np.zeros_like(found))


def check_empty_kernels() -> None:
    """Raises AssertionError unless sums of nothing are zero, or the bias."""
    none, tokens = ids(), np.int64(-2)
    no_inputs = {"x": ones(5, 0), "kernel": ones(0, 6), "kept": none}
    no_tokens = {**no_inputs, "x": ones(5, 0, 7), "y": result(5, 6, 7), "axis": tokens}
    nothing = {"x": ones(5, 0), "dw": result(0, 6), "kept": none}
    calls_and_results: list[tuple[Call, tuple[float | None, ...]]] = [
        (over_tokens().but(x=ones(5, 8, 0), y=result(5, 6, 0)), (0,)),
        (gradient_over_tokens().but(x=ones(5, 8, 0), dy=ones(5, 6, 0)), (0, 0)),
        (multiply().but(**no_inputs), (1,)),
        (multiply().but(**no_tokens), (1,)),
        (multiply().but(kernel=ones(8, 0), bias=ones(0), kept=none, y=result(5, 0)), (0,)),
        (transposed().but(kernel=ones(0, 6), kept=none, y=result(5, 0)), (0,)),
        (transposed().but(x=ones(5, 0), kernel=ones(8, 0), kept=none), (0,)),
        (gradient().but(**nothing), (0, 5)),
        (gradient().but(**nothing | {"dw": result(0, 0)}, dy=ones(5, 0), db=result(0)), (0, 0)),
    ]
    kept = {"kept1": none, "kept2": none, "residual": False}
    for n_in, hidden, n_out in ((0, 6, 8), (8, 0, 8), (8, 6, 0), (0, 0, 8), (0, 0, 0)):
        x, y = (5, n_in), (5, n_out)
        shapes = {"w1": (n_in, hidden), "b1": (hidden,), "w2": (hidden, n_out), "b2": (n_out,)}
        arrays = {name: ones(*shape) for name, shape in shapes.items()} | {"x": ones(*x)} | kept
        gradients = {f"d{name}": result(*shape) for name, shape in shapes.items()}
        backward = mlp_gradient().but(**arrays, **gradients, dy=ones(*y), dx=result(*x))
        calls_and_results += [
            (mlp().but(**arrays, y=result(*y)), (1,)),
            (backward, (0, 0, 0, 0, 5)),
            # Hidden units that are GELU of their bias have a gradient in W2.
            (backward.but(straight_through=True), (0, 0, 0, None, 5)),
        ]
    for call, wanted in calls_and_results:
        print(call.handler, {name: a.shape for name, a in call.operands.items()}, flush=True)
        for found, want in zip(call(), wanted, strict=True):
            if want is not None:
                np.testing.assert_array_equal(found, np.full_like(found, want))


def test_layers_without_features_or_channels_are_no_crash():
    run_in_child("test_empty_calls", "check_empty_kernels")
