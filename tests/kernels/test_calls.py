"""The native kernels as XLA calls: what arrives wrong is an error that says what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native import needs_native
from native_calls import (
    EVERY_CALL,
    all_of,
    gradient,
    gradient_over_tokens,
    ids,
    int64s,
    mlp,
    mlp_gradient,
    multiply,
    ones,
    over_tokens,
    pruned,
    refused,
    result,
    straight_through_gradient,
    transposed,
)

from pallas_kernels import SparseLayer
from pallas_kernels.cpu import calls

F64, BF16, I32 = np.float64, jnp.bfloat16, jnp.int32
pytestmark = needs_native


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
