"""The native kernels as XLA calls: what arrives wrong is an error, what is right is exact."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_mlp

from pallas_kernels import ENGINES, SparseLayer, Weights
from pallas_kernels.cpu import calls
from pallas_kernels.cpu.build import BuildError
from pallas_kernels.layout import dense_mask

F32, F64, BF16, I32 = jnp.float32, np.float64, jnp.bfloat16, jnp.int32
UNABLE = ENGINES["cpu"].reason_against(
    SparseLayer((8, 6), (3, 2), 1, -1, "float32"), jax.default_backend()
)
pytestmark = pytest.mark.skipif(UNABLE is not None, reason=str(UNABLE))


class Call(NamedTuple):
    """One call of a handler; what it is called with, by name and in order."""

    handler: str
    operands: dict[str, Any]
    results: dict[str, Any]
    options: dict[str, Any]

    def but(self, **changes: Any) -> "Call":
        """The same call with operands, results or options changed; None leaves one out."""
        call = Call(self.handler, *map(dict, self[1:]))
        for name, value in changes.items():
            (found,) = (part for part in call[1:] if name in part)
            found[name] = value
            if value is None:
                del found[name]
        return call

    def __call__(self) -> list[np.ndarray]:
        results = list(self.results.values())
        run = jax.ffi.ffi_call(self.handler, results)
        return [np.asarray(a) for a in run(*self.operands.values(), **self.options)]


def ones(*shape: int, dtype: Any = F32) -> np.ndarray:
    return np.ones(shape, dtype)


def ids(*kept: Any, dtype: Any = np.int32) -> np.ndarray:
    return np.array(kept, dtype)


def result(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def int64s(**values: int) -> dict[str, np.int64]:
    return {name: np.int64(value) for name, value in values.items()}


def multiply() -> Call:
    """A kernel [in, out] = [8, 6] in blocks of 3x2: a grid of 4x2."""
    return Call(
        "sparsemlp_multiply",
        {"x": ones(5, 8), "kernel": ones(8, 6), "bias": ones(6), "kept": ids(0, 2, 3)},
        {"y": result(5, 6)},
        {**int64s(rows=3, cols=2, axis=-1), "transposed": False},
    )


def over_tokens() -> Call:
    return multiply().but(x=ones(5, 8, 7), y=result(5, 6, 7), axis=np.int64(-2))


def transposed() -> Call:
    return multiply().but(x=ones(5, 6), bias=ones(0), y=result(5, 8), transposed=True)


def gradient() -> Call:
    return Call(
        "sparsemlp_gradient",
        {"x": ones(5, 8), "dy": ones(5, 6), "kept": ids(0, 2, 3)},
        {"dw": result(8, 6), "db": result(6)},
        int64s(rows=3, cols=2, axis=-1),
    )


def gradient_over_tokens() -> Call:
    return gradient().but(x=ones(5, 8, 7), dy=ones(5, 6, 7), axis=np.int64(-2))


def mlp() -> Call:
    """[8, 6] in blocks of 3x2, then [6, 8] in blocks of 4x3: grids of 4x2 and 2x2."""
    operands = {
        "x": ones(5, 8),
        "w1": ones(8, 6),
        "b1": ones(6),
        "kept1": ids(0, 2, 3),
        "w2": ones(6, 8),
        "b2": ones(8),
        "kept2": ids(1, 2),
    }
    options = {**int64s(rows1=3, cols1=2, rows2=4, cols2=3), "residual": True}
    return Call("sparsemlp_mlp", operands, {"y": result(5, 8)}, options)


def mlp_gradient() -> Call:
    _, operands, _, options = mlp()
    operands = {"x": operands.pop("x"), "dy": ones(5, 8), **operands}
    results = {
        "dx": result(5, 8),
        "dw1": result(8, 6),
        "db1": result(6),
        "dw2": result(6, 8),
        "db2": result(8),
    }
    options = {**options, "straight_through": False}
    return Call("sparsemlp_mlp_gradient", operands, results, options)


def straight_through_gradient() -> Call:
    return mlp_gradient().but(straight_through=True)


def pruned() -> Call:
    """A kernel [in, out] = [8, 6], the 2 largest of 3, samples of 5 rows."""
    return Call(
        "sparsemlp_pruned",
        {"x": ones(10, 6), "kernel": ones(8, 6)},
        {"dx": result(10, 8)},
        int64s(n=2, m=3, positions=5),
    )


EVERY_CALL = pytest.mark.parametrize(
    "make",
    [multiply, over_tokens, transposed, gradient, gradient_over_tokens, mlp, mlp_gradient],
    ids=lambda make: make.__name__,
)


def all_of(make: Callable[[], Call], dtype: Any) -> Call:
    """The call with all operands and results but ids of another dtype."""
    call = make()
    operands = {
        name: a if name.startswith("kept") else a.astype(dtype) for name, a in call.operands.items()
    }
    results = {name: result(*r.shape, dtype=dtype) for name, r in call.results.items()}
    return call._replace(operands=operands, results=results)


def refused(call: Call) -> str:
    """What the error says that a call ends with."""
    with jax.enable_x64(True), pytest.raises(jax.errors.JaxRuntimeError) as caught:
        call()
    return str(caught.value)


@EVERY_CALL
def test_the_calls_that_are_made_wrong_below_are_right(make):
    for found, struct in zip(make()(), make().results.values(), strict=True):
        assert (found.shape, found.dtype) == (struct.shape, struct.dtype)
        assert np.all(np.isfinite(found))
        assert np.any(found != 0)


NOT_A_BLOCK = ((4, 2), (3, 3), (0, 2), (3, 0), (-3, 2), (3, -2), (2**62, 2), (3, -(2**63)))
"""No blocks of a kernel [in, out] = [8, 6]."""


@EVERY_CALL
@pytest.mark.parametrize(("rows", "cols"), NOT_A_BLOCK)
def test_a_block_that_does_not_divide_is_named(make, rows, cols):
    call, index = make(), "1" if "rows1" in make().options else ""
    said = refused(call.but(**int64s(**{f"rows{index}": rows, f"cols{index}": cols})))
    assert f"block {rows}x{cols} does not divide the kernel [in, out] = [8, 6]" in said


@pytest.mark.parametrize("make", [mlp, mlp_gradient, straight_through_gradient])
def test_a_block_of_the_second_layer_that_does_not_divide_is_named(make):
    said = refused(make().but(rows2=np.int64(3)))
    assert "block 3x3 does not divide the kernel [in, out] = [6, 8]" in said


# No ids of a grid of 4x2.
OUT_OF_RANGE = {
    "negative": ids(-1, 2, 3),
    "negative alone": ids(-(2**31)),
    "one too large": ids(0, 2, 8),
    "far too large": ids(0, 2, 2**31 - 1),
    "descending": ids(3, 2, 0),
    "one out of order": ids(0, 3, 2),
    "doubled": ids(0, 2, 2),
}
NO_IDS = {
    "int64": ids(0, 2, 3, dtype=np.int64),
    "int16": ids(0, 2, 3, dtype=np.int16),
    "uint32": ids(0, 2, 3, dtype=np.uint32),
    "float32": ids(0, 2, 3, dtype=np.float32),
    "bool": ids(True, False, True, dtype=np.bool_),
    "rank 0": np.int32(0),
    "rank 2": ids([0, 2, 3]),
}


@EVERY_CALL
@pytest.mark.parametrize("kept", [*OUT_OF_RANGE, *NO_IDS])
def test_ids_that_are_not_those_of_blocks_are_refused(make, kept):
    name = "kept1" if "kept1" in make().operands else "kept"
    said = refused(make().but(**{name: (OUT_OF_RANGE | NO_IDS)[kept]}))
    if kept in NO_IDS:
        assert "the ids of kept blocks must be int32 of rank 1" in said
    else:
        assert "the ids of kept blocks do not ascend within [0, 8)" in said


@pytest.mark.parametrize("make", [mlp, mlp_gradient, straight_through_gradient])
def test_ids_of_the_second_layer_are_those_of_its_own_grid(make):
    said = refused(make().but(kept2=ids(1, 4)))
    assert "the ids of kept blocks do not ascend within [0, 4)" in said


@pytest.mark.parametrize(
    "make", [multiply, over_tokens, transposed, gradient, mlp, mlp_gradient, pruned]
)
@pytest.mark.parametrize("dtype", [F64, np.float16, np.int32, np.complex64, np.bool_])
def test_operands_are_float32_or_bfloat16(make, dtype):
    assert "only float32 and bfloat16 are supported" in refused(all_of(make, dtype))


MIXED = [
    (make, name)
    for make in (multiply, transposed, gradient, mlp, mlp_gradient, pruned)
    for part in make()[1:3]
    for name in part
    if not name.startswith("kept")
]


@pytest.mark.parametrize(
    ("make", "name"), MIXED, ids=lambda value: value if isinstance(value, str) else value.__name__
)
@pytest.mark.parametrize("dtype", [F64, BF16], ids=["float64", "bfloat16"])
def test_operands_and_results_have_one_dtype(make, name, dtype):
    call = make()
    changed = (
        call.operands[name].astype(dtype)
        if name in call.operands
        else result(*call.results[name].shape, dtype=dtype)
    )
    said = refused(call.but(**{name: changed}))
    assert any(part in said for part in ("must have one dtype", "does not fit", "and the dtype of"))


WRONG_SHAPES = [
    (multiply, {"kernel": ones(48)}, "kernel of shape [48] is not [in, out]"),
    (multiply, {"kernel": ones(1, 8, 6)}, "kernel of shape [1, 8, 6] is not [in, out]"),
    (multiply, {"kernel": np.float32(1)}, "kernel of shape [] is not [in, out]"),
    (multiply, {"x": ones(5, 7)}, "x of shape [5, 7] has not 8 entries on axis -1"),
    (multiply, {"x": np.float32(1)}, "x of shape [] has not 8 entries on axis -1"),
    (multiply, {"x": ones(4, 8)}, "x of shape [4, 8] does not fit y of shape [5, 6]"),
    (multiply, {"x": ones(8)}, "x of shape [8] does not fit y of shape [5, 6]"),
    (multiply, {"x": ones(5, 1, 8)}, "x of shape [5, 1, 8] does not fit y of shape [5, 6]"),
    (multiply, {"y": result(5, 8)}, "y of shape [5, 8] has not 6 entries on axis -1"),
    (multiply, {"y": result()}, "y of shape [] has not 6 entries on axis -1"),
    (multiply, {"y": result(6, 6)}, "x of shape [5, 8] does not fit y of shape [6, 6]"),
    (multiply, {"bias": ones(5)}, "bias of shape [5] does not fit"),
    (multiply, {"bias": ones(8)}, "bias of shape [8] does not fit"),
    (multiply, {"bias": ones(6, 1)}, "bias of shape [6, 1] does not fit"),
    (multiply, {"bias": np.float32(1)}, "bias of shape [] does not fit"),
    (multiply, {"transposed": True}, "y of shape [5, 6] has not 8 entries on axis -1"),
    (transposed, {"transposed": False}, "y of shape [5, 8] has not 6 entries on axis -1"),
    (transposed, {"bias": ones(8)}, "bias of shape [8] does not fit"),
    (over_tokens, {"x": ones(5, 7, 8)}, "x of shape [5, 7, 8] has not 8 entries on axis -2"),
    (over_tokens, {"x": ones(8)}, "x of shape [8] has not 8 entries on axis -2"),
    (over_tokens, {"x": ones(5, 8, 6)}, "x of shape [5, 8, 6] does not fit y of shape [5, 6, 7]"),
    (over_tokens, {"x": ones(4, 8, 7)}, "x of shape [4, 8, 7] does not fit y of shape [5, 6, 7]"),
    (over_tokens, {"y": result(5, 6)}, "y of shape [5, 6] has not 6 entries on axis -2"),
    (gradient, {"dw": result(48)}, "dW of shape [48] is not [in, out]"),
    (gradient, {"dw": result(8, 9)}, "dy of shape [5, 6] has not 9 entries on axis -1"),
    (gradient, {"dw": result(10, 6)}, "x of shape [5, 8] has not 10 entries on axis -1"),
    (gradient, {"dy": ones(4, 6)}, "x of shape [5, 8] does not fit dy of shape [4, 6]"),
    (gradient, {"dy": ones(6)}, "x of shape [5, 8] does not fit dy of shape [6]"),
    (gradient, {"dy": np.float32(1)}, "dy of shape [] has not 6 entries on axis -1"),
    (gradient, {"db": result(5)}, "db of shape [5] does not fit"),
    (gradient, {"db": result(2, 3)}, "db of shape [2, 3] does not fit"),
    (gradient_over_tokens, {"dy": ones(5, 6, 8)}, "does not fit dy of shape [5, 6, 8]"),
    (gradient_over_tokens, {"x": ones(8)}, "x of shape [8] has not 8 entries on axis -2"),
    *(
        (make, changes, says)
        for make in (mlp, mlp_gradient)
        for changes, says in (
            ({"x": ones(5, 7)}, "x of shape [5, 7] has not 8 entries on axis -1"),
            ({"x": ones(4, 8)}, "x of shape [4, 8] does not fit y of shape [5, 8]"),
            ({"x": np.float32(1)}, "x of shape [] has not 8 entries on axis -1"),
            ({"w1": ones(48)}, "first kernel of shape [48] is not [in, out]"),
            ({"w2": ones(6, 8, 1)}, "second kernel of shape [6, 8, 1] is not [in, out]"),
            ({"b1": ones(8)}, "first bias of shape [8] does not fit"),
            ({"b2": ones(1, 8)}, "second bias of shape [1, 8] does not fit"),
            ({"w1": ones(8, 9), "b1": ones(9)}, "second kernel does not take what the first gives"),
            (
                {"w1": ones(10, 6), "x": ones(5, 10)},
                "x cannot be added to y of another width",
            ),
        )
    ),
    (mlp, {"y": result(5, 4)}, "y of shape [5, 4] has not 8 entries on axis -1"),
    (mlp, {"y": result(4, 8)}, "x of shape [5, 8] does not fit y of shape [4, 8]"),
    (mlp_gradient, {"dy": ones(4, 8)}, "x of shape [5, 8] does not fit y of shape [4, 8]"),
    *(
        (mlp_gradient, {name: result(*shape)}, "gradients must have the shapes and the dtype of")
        for name, shape in (
            ("dx", (8, 5)),
            ("dw1", (6, 8)),
            ("dw1", (48,)),
            ("db1", (0,)),
            ("db1", (5,)),
            ("dw2", (8, 6)),
            ("db2", (0,)),
            ("db2", (8, 1)),
        )
    ),
    (mlp_gradient, {"b1": ones(0)}, "gradients must have the shapes and the dtype of"),
    (pruned, {"kernel": ones(48)}, "kernel of shape [48] is not [in, out]"),
    (pruned, {"x": ones(10, 7)}, "dy of shape [10, 7] has not 6 entries on axis -1"),
    (pruned, {"x": np.float32(1)}, "dy of shape [] has not 6 entries on axis -1"),
    (pruned, {"x": ones(5, 6)}, "dy of shape [5, 6] does not fit dx of shape [10, 8]"),
    (pruned, {"x": ones(6)}, "dy of shape [6] does not fit dx of shape [10, 8]"),
    (pruned, {"dx": result(10, 6)}, "dx of shape [10, 6] has not 8 entries on axis -1"),
    (pruned, {"dx": result(9, 8)}, "dy of shape [10, 6] does not fit dx of shape [9, 8]"),
    (pruned, {"kernel": ones(8, 9), "x": ones(10, 9), **int64s(m=6)}, "of 9 outputs"),
    *(
        (pruned, int64s(n=n, m=m), f"the {n} largest of {m} neighbours cannot be taken of 6")
        for n, m in ((0, 3), (-1, 3), (4, 3), (2, 4), (1, 0), (1, -3), (2**62, 2**62), (1, 12))
    ),
    (pruned, {"kernel": ones(8, 34), "x": ones(10, 34), **int64s(n=17, m=34)}, "the 17 largest"),
    *(
        (pruned, int64s(positions=positions), f"10 rows are no samples of {positions}")
        for positions in (3, -1, 20, 2**62, -(2**63))
    ),
]


@pytest.mark.parametrize(
    ("make", "changes", "says"),
    WRONG_SHAPES,
    ids=[f"{make.__name__}-{'-'.join(c)}-{says}" for make, c, says in WRONG_SHAPES],
)
def test_shapes_that_do_not_fit_are_named(make, changes, says):
    said = refused(make().but(**changes))
    assert "sparsemlp engine 'cpu': " in said
    assert says in said


@pytest.mark.parametrize("make", [multiply, gradient])
@pytest.mark.parametrize("axis", [0, 1, -3, 2**62])
def test_an_axis_that_is_neither_features_nor_tokens_is_named(make, axis):
    assert f"axis {axis} is not -1 or -2" in refused(make().but(axis=np.int64(axis)))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (make, name)
        for make in (multiply, gradient, mlp, mlp_gradient, pruned)
        for name in make().options
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_an_attribute_that_is_missing_or_of_another_type_is_refused(make, name):
    assert "Wrong number of attributes" in refused(make().but(**{name: None}))
    assert "Wrong scalar data type" in refused(make().but(**{name: np.float32(1.5)}))
    call = make()
    call.options[f"{name}_"] = call.options.pop(name)
    assert "Attribute name mismatch" in refused(call)


@pytest.mark.parametrize("make", [multiply, gradient, mlp, mlp_gradient, pruned])
def test_a_missing_operand_or_result_is_refused(make):
    assert "Wrong number of arguments" in refused(make().but(x=None))
    call = make()
    results = {**call.results, "more": result(1)}
    assert "Wrong number of results" in refused(call._replace(results=results))


def test_an_error_in_a_compiled_program_is_one_of_that_program_alone():
    """Also where the ids are known only when it runs."""

    @jax.jit
    def run(kept: jax.Array) -> jax.Array:
        return jnp.sum(calls.multiply(jnp.ones((5, 8)), jnp.ones((8, 6)), None, kept, LAYER, **on))

    on, right = {"transposed": False}, jnp.array([0, 2, 3], I32)
    before = run(right)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="do not ascend"):
        run(jnp.array([0, 3, 2], I32)).block_until_ready()
    assert run(right) == before == 5 * 3 * 6


LAYER = SparseLayer((8, 6), (3, 2), 3, -1, "float32")


def test_without_the_library_a_call_says_why(monkeypatch):
    monkeypatch.setattr(calls, "load_library", lambda: BuildError("no compiler"))
    arguments = (jnp.ones((5, 8)), jnp.ones((8, 6)), None, jnp.arange(3, dtype=I32), LAYER)
    with pytest.raises(BuildError, match="no compiler"):
        calls.multiply(*arguments, transposed=False)


def test_a_library_that_cannot_be_built_or_loaded_is_the_reason(monkeypatch, tmp_path):
    def fail(source: Path) -> Path:
        assert source == calls.SOURCE
        raise BuildError("no compiler")

    monkeypatch.setattr(calls, "build_library", fail)
    failed = calls.load_library.__wrapped__()
    assert isinstance(failed, BuildError)
    assert str(failed) == "no compiler"
    broken = tmp_path / "kernels.so"
    broken.write_text("no library")
    monkeypatch.setattr(calls, "build_library", lambda source: broken)
    failed = calls.load_library.__wrapped__()
    assert isinstance(failed, BuildError)
    assert "the built kernels do not load" in str(failed)
    assert str(broken) in str(failed)


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
def test_the_pruned_call_that_is_made_wrong_above_is_right(dtype, positions):
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


def in_another_process(program: str, n_cpus: int | None = None) -> str:
    """What a program prints that knows this module as `t`, on so many of this machine's CPUs."""
    preparation = (
        ""
        if n_cpus is None
        else (f"import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{n_cpus}]); ")
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{preparation}import test_calls as t; {program}"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_layers_without_features_or_channels_are_no_crash():
    in_another_process("t.check_empty_kernels()")


BLOCKS = ((1, 1), (1, 8), (8, 1), (4, 8), (3, 5), (24, 40))
"""Blocks `(rows, cols)`, few of which any vector or tile fits."""


def kernel_shape(block: tuple[int, int], n_in: int = 19, n_out: int = 35) -> tuple[int, int]:
    """Whole blocks, at least so many inputs and outputs."""
    rows, cols = block
    return (-(-n_in // cols) * cols, -(-n_out // rows) * rows)


def random_ids(rng: np.random.Generator, shape: tuple[int, int], block: tuple[int, int]) -> Any:
    n_blocks = (shape[0] // block[1]) * (shape[1] // block[0])
    kept = rng.choice(n_blocks, max(1, n_blocks // 3), replace=False)
    return jnp.asarray(np.sort(kept), I32)


def float64(a: Any) -> np.ndarray:
    return np.asarray(a).astype(np.float64)


@functools.partial(jax.jit, static_argnums=0)
def products(layer: SparseLayer, x, dy, kernel, bias, kept) -> tuple[jax.Array, ...]:
    """The arrays y, dx, dW, db."""
    y = calls.multiply(x, kernel, bias, kept, layer, transposed=False)
    dx = calls.multiply(dy, kernel, None, kept, layer, transposed=True)
    return y, dx, *calls.gradient(x, dy, kept, layer, with_bias=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block[0]}x{block[1]}")
def test_small_and_odd_blocks_are_computed_natively_and_right(block, axis, dtype):
    """They are the ones that engine `cpu` may leave to another."""
    rng, shape = np.random.default_rng(0), kernel_shape(block)
    n_in, n_out = shape
    batch, channels = ((37,), ()) if axis == -1 else ((3,), (7,))
    kept = random_ids(rng, shape, block)
    layer = SparseLayer(shape, block, len(kept), axis, dtype)
    x, dy, kernel, bias = (
        jnp.asarray(rng.normal(size=size), dtype)
        for size in ((*batch, n_in, *channels), (*batch, n_out, *channels), shape, n_out)
    )
    found = products(layer, x, dy, kernel, bias, kept)
    mask = np.asarray(dense_mask(kept, shape, block))
    letters = {-1: ("ni", "no"), -2: ("nic", "noc")}[axis]
    masked, wide_bias = float64(kernel) * mask, float64(bias)[(..., *(None for _ in channels))]

    def in_float64(change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
        a, b, w = change(float64(x)), change(float64(dy)), change(masked)
        left, right = letters
        return [
            np.einsum(f"{left},io->{right}", a, w) + change(wide_bias),
            np.einsum(f"{right},io->{left}", b, w),
            np.einsum(f"{left},{right}->io", a, b) * mask,
            np.einsum(f"{right}->o", b),
        ]

    values, masses = in_float64(np.asarray), in_float64(np.abs)
    for name, got, value, mass in zip(("y", "dx", "dW", "db"), found, values, masses, strict=True):
        assert got.dtype == jnp.dtype(dtype)
        reference_mlp.assert_near(got, (value, mass), reference_mlp.share(dtype, 120), name)
    np.testing.assert_array_equal(np.asarray(found[2])[~mask], 0)


class Mlp(NamedTuple):
    """An MLP at the level of calls, and its operands."""

    layers: tuple[SparseLayer, SparseLayer]
    residual: bool
    x: Any
    dy: Any
    weights: tuple[Weights, Weights]


def draw_mlp(
    blocks: tuple[tuple[int, int], tuple[int, int]],
    dtype: str = "float32",
    with_bias: bool = True,
    batch: tuple[int, ...] = (37,),
    stack: tuple[int, ...] = (),
) -> Mlp:
    """Random operands; hidden units of the least number that both blocks divide, or twice."""
    rng = np.random.default_rng(0)
    (rows1, cols1), (rows2, cols2) = blocks
    hidden = int(np.lcm(rows1, cols2)) * (2 if np.lcm(rows1, cols2) < 40 else 1)
    n_in = int(np.lcm(cols1, rows2)) * (1 if np.lcm(cols1, rows2) > 15 else 20)
    shapes = ((n_in, hidden), (hidden, n_in))

    def normal(*shape: int, scale: float = 1.0) -> jax.Array:
        return jnp.asarray(scale * rng.normal(size=(*stack, *shape)), dtype)

    weights, layers = [], []
    for shape, block in zip(shapes, blocks, strict=True):
        kept = random_ids(rng, shape, block)
        bias = normal(shape[1]) if with_bias else None
        stacked = jnp.broadcast_to(kept, (*stack, *kept.shape))
        weights.append(Weights(normal(*shape, scale=shape[0] ** -0.5), bias, stacked))
        layers.append(SparseLayer(shape, block, len(kept), -1, dtype))
    x, dy = normal(*batch, n_in), normal(*batch, n_in)
    return Mlp((layers[0], layers[1]), True, x, dy, (weights[0], weights[1]))


def value_and_gradients(made: Mlp, x: Any, dy: Any, weights: Any) -> dict[str, jax.Array]:
    """Result and gradients by name; None for that of an absent bias."""
    y = calls.mlp(x, weights, made.layers, made.residual)
    dx, (first, second) = calls.mlp_gradients(x, dy, weights, made.layers, made.residual)
    gradients = {"dw1": first.kernel, "db1": first.bias, "dw2": second.kernel, "db2": second.bias}
    return {"y": y, "dx": dx, **gradients}


def assert_right(made: Mlp, found: dict[str, Any], x: Any, dy: Any, weights: Any) -> None:
    dtype = made.layers[0].dtype
    layers = []
    for layer, w in zip(made.layers, weights, strict=True):
        bias = np.zeros(layer.kernel_shape[1]) if w.bias is None else float64(w.bias)
        mask = np.asarray(dense_mask(w.kept, layer.kernel_shape, layer.block))
        layers.append(reference_mlp.Layer(float64(w.kernel), bias, mask))
    n_in = made.layers[0].kernel_shape[0]
    one, nothing = np.ones(n_in), np.zeros(n_in)
    first, second = layers
    want = reference_mlp.mlp(
        float64(x), float64(dy), first, second, one, nothing, one, made.residual
    )
    longest = max(x.size // n_in, *(max(layer.kernel_shape) for layer in made.layers))
    for name, got in found.items():
        if got is not None:
            assert got.dtype == jnp.dtype(dtype), name
            reference_mlp.assert_near(got, want[name], reference_mlp.share(dtype, longest), name)
    for name, layer in zip(("dw1", "dw2"), layers, strict=True):
        np.testing.assert_array_equal(np.asarray(found[name])[~layer.mask], 0)


@pytest.mark.parametrize(
    ("blocks", "dtype", "with_bias"),
    [
        (((1, 1), (1, 1)), "float32", True),
        (((1, 8), (8, 1)), "bfloat16", True),
        (((8, 1), (1, 8)), "float32", False),
        (((4, 8), (3, 5)), "float32", True),
        (((3, 5), (24, 40)), "bfloat16", False),
        (((24, 40), (3, 5)), "float32", True),
        (((24, 40), (40, 24)), "bfloat16", True),
    ],
    ids=str,
)
def test_an_mlp_of_small_and_odd_blocks_is_computed_natively_and_right(blocks, dtype, with_bias):
    made = draw_mlp(blocks, dtype, with_bias)
    operands = (made.x, made.dy, made.weights)
    found = jax.jit(functools.partial(value_and_gradients, made))(*operands)
    assert (found["db1"] is None) == (found["db2"] is None) == (not with_bias)
    assert_right(made, found, *operands)


def test_mapping_an_mlp_over_x_alone_is_a_longer_batch():
    """One call computes it: its rows and those of the batch are the same to it."""
    made = draw_mlp(((3, 5), (5, 3)), batch=(4, 9))
    _, _, x, _, weights = made

    def mapped(x: Any, weights: Any) -> Any:
        return jax.vmap(lambda row: calls.mlp(row, weights, made.layers, made.residual))(x)

    found = jax.jit(mapped)(x, weights)
    together = calls.mlp(x, weights, made.layers, made.residual)
    np.testing.assert_array_equal(found, together)
    program = str(jax.make_jaxpr(mapped)(x, weights))
    assert "ffi_call" in program
    assert "scan" not in program


@pytest.mark.parametrize("transform", ["vmap", "nested vmap", "scan"])
def test_mapping_an_mlp_over_all_is_one_after_another(transform):
    stack = (2, 2) if transform == "nested vmap" else (3,)
    made = draw_mlp(((3, 5), (5, 3)), batch=(9,), stack=stack)
    one = functools.partial(value_and_gradients, made)

    def scanned(*operands: Any) -> Any:
        return jax.lax.scan(lambda _, member: (None, one(*member)), None, operands)[1]

    transformed = {"vmap": jax.vmap(one), "nested vmap": jax.vmap(jax.vmap(one)), "scan": scanned}
    operands = (made.x, made.dy, made.weights)
    found = jax.jit(transformed[transform])(*operands)
    for index in np.ndindex(*stack):
        member, outcome = jax.tree.map(lambda a, i=index: a[i], (operands, found))
        assert_right(made, outcome, *member)


def test_gradients_that_are_mapped_over_dy_alone_share_the_layers():
    """As `jax.jacrev` maps them."""
    made = draw_mlp(((3, 5), (5, 3)), batch=(9,))
    dys = jnp.stack([made.dy, 2 * made.dy])

    def of(dy: jax.Array) -> Any:
        return calls.mlp_gradients(made.x, dy, made.weights, made.layers, made.residual)

    found = jax.jit(jax.vmap(of))(dys)
    for index in range(2):
        for got, want in zip(
            jax.tree.leaves(jax.tree.map(lambda a, i=index: a[i], found)),
            jax.tree.leaves(of(dys[index])),
            strict=True,
        ):
            np.testing.assert_array_equal(got, want)


def n_xla_threads() -> int:
    """How many threads compute in this process."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("tf_XLAEigen")


def print_results() -> None:
    """Prints the number of threads, and bits of every kernel's results, enough for many tasks."""
    rng = np.random.default_rng(0)
    digits = {}
    layers: tuple[tuple[Literal[-1, -2], str, tuple[int, ...], tuple[int, ...]], ...]
    layers = ((-1, "float32", (1030,), ()), (-2, "bfloat16", (21,), (67,)))
    for axis, dtype, batch, channels in layers:
        shape, block = (96, 160), (32, 16)
        kept = random_ids(rng, shape, block)
        layer = SparseLayer(shape, block, len(kept), axis, dtype)
        sizes = ((*batch, 96, *channels), (*batch, 160, *channels), shape, 160)
        operands = [jnp.asarray(rng.normal(size=size), dtype) for size in sizes]
        found = products(layer, *operands, kept)
        for name, a in zip(("y", "dx", "dW", "db"), found, strict=True):
            digits[f"{name} {axis} {dtype}"] = np.asarray(a).tobytes().hex()
    for dtype in ("float32", "bfloat16"):
        made = draw_mlp(((32, 16), (16, 32)), dtype, batch=(1030,))
        run = jax.jit(functools.partial(value_and_gradients, made))
        for name, a in run(made.x, made.dy, made.weights).items():
            digits[f"mlp {name} {dtype}"] = np.asarray(a).tobytes().hex()
    print(json.dumps({"n_threads": n_xla_threads(), "digits": digits}))


@pytest.mark.skipif(sys.platform != "linux", reason="threads follow the affinity of Linux")
def test_results_are_the_same_bits_with_one_thread_and_with_many():
    n_cpus = len(os.sched_getaffinity(0))
    if n_cpus < 2:
        pytest.skip("there is one CPU here")
    one, many = (
        json.loads(in_another_process("t.print_results()", n).splitlines()[-1])
        for n in (1, min(n_cpus, 4))
    )
    assert one["n_threads"] == 1
    assert many["n_threads"] == min(n_cpus, 4)
    assert len(one["digits"]) == 2 * (4 + 6)
    for name, digits in one["digits"].items():
        assert any(digit != "0" for digit in digits), name
        assert many["digits"][name] == digits, name
