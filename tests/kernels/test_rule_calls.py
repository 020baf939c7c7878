"""The native kernels for pruned operands as XLA calls: what arrives wrong is an error."""

import numpy as np
import pytest
from native import needs_native
from native_calls import (
    all_of,
    ids,
    int64s,
    keep_largest,
    ones,
    pruned_mlp,
    pruned_mlp_gradient,
    refused,
    result,
)

pytestmark = needs_native
CALLS = pytest.mark.parametrize(
    "make", [keep_largest, pruned_mlp, pruned_mlp_gradient], ids=lambda make: make.__name__
)
PAIRS = (pruned_mlp, pruned_mlp_gradient)


@CALLS
def test_the_calls_that_are_made_wrong_below_are_right(make):
    for found, struct in zip(make()(), make().results.values(), strict=True):
        assert (found.shape, found.dtype) == (struct.shape, struct.dtype)
        assert np.all(np.isfinite(found))
        assert np.any(found != 0)


@CALLS
@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
def test_operands_are_float32_or_bfloat16(make, dtype):
    call = all_of(make, dtype)
    for name in ("norms1", "norms2"):
        if name in call.results:
            call = call.but(**{name: make().results[name]})
    assert "only float32 and bfloat16 are supported" in refused(call)


LARGE = (2**62, -(2**63), -1)
WRONG = [
    *(
        (keep_largest, int64s(n=n, m=m), f"the {n} largest of {m} neighbours cannot be taken of 6")
        for n, m in ((0, 3), (-1, 3), (4, 3), (2, 4), (1, 0), (1, -3), (2**62, 2**62), (1, 12))
    ),
    (keep_largest, {"x": ones(10, 66), "pruned": result(10, 66), **int64s(m=33)}, "of 33"),
    *(
        (keep_largest, int64s(positions=positions), f"10 rows are no samples of {positions}")
        for positions in (3, 20, *LARGE)
    ),
    (keep_largest, int64s(axis=0), "axis 0 is not -1 or -2"),
    (keep_largest, {"x": ones(6), **int64s(axis=-2)}, "dy of shape [6] has no axis -2"),
    (keep_largest, {"x": np.float32(1)}, "dy of shape [] has no axis -1"),
    (keep_largest, {"x": ones(5, 6)}, "must be alike"),
    (keep_largest, {"pruned": result(60)}, "must be alike"),
    (keep_largest, {"pruned": result(10, 6, dtype=np.float64)}, "must be alike"),
    *(
        (make, changes, says)
        for make in PAIRS
        for changes, says in (
            ({"x": ones(6, 7)}, "x of shape [6, 7] has not 8 entries on axis -1"),
            ({"w1": ones(48)}, "first kernel of shape [48] is not [in, out]"),
            ({"kept2": ids(2, 1)}, "do not ascend within [0, 4)"),
            (int64s(rows2=3), "block 3x3 does not divide the kernel [in, out] = [6, 8]"),
            ({"scale": ones(7)}, "scale of shape [7] is not one for each of 8 columns"),
            ({"shift": ones(1, 8)}, "shift of shape [1, 8] is not one for each of 8 columns"),
            ({"shift": ones(8, dtype=np.float64)}, "of x's dtype"),
            (int64s(height1=4), "blocks of 4x2 do not divide the activation [6, 8]"),
            (int64s(width1=3), "blocks of 3x3 do not divide the activation [6, 8]"),
            (int64s(height2=2, width2=4), "blocks of 2x4 do not divide the activation [6, 6]"),
            (int64s(height2=-2), "blocks of -2x3 do not divide"),
            (int64s(width2=0), "blocks of 2x0 do not divide"),
            *((int64s(width1=side), f"blocks of 3x{side} do not divide") for side in LARGE),
        )
    ),
    (pruned_mlp, {"norms1": result(2, 3)}, "norms of shape [2, 3] are not one for each block"),
    (pruned_mlp, {"norms2": result(6, dtype=np.float64)}, "are not one for each block, float32"),
    (pruned_mlp, int64s(height1=0), "norms of shape [2, 4] are not one for each block"),
    *(
        (pruned_mlp_gradient, changes, says)
        for changes, says in (
            ({"dy": ones(5, 8)}, "x of shape [6, 8] does not fit y of shape [5, 8]"),
            ({"after": ones(6)}, "after of shape [6] is not one for each of 8 columns"),
            ({"kept_x": ids(6, 1)}, "ids of kept blocks do not ascend within the activation"),
            ({"kept_x": ids(1, 8)}, "ids of kept blocks do not ascend within the activation"),
            ({"kept_hidden": ids(-1, 2)}, "do not ascend within the activation"),
            ({"kept_hidden": ids(1, dtype=np.int64)}, "must be int32 of rank 1"),
            ({"kept_x": ids([1, 2])}, "must be int32 of rank 1"),
            (int64s(height1=0), "do not ascend within the activation"),
            (int64s(n1=3), "the 3 largest of 2 neighbours cannot be taken of 6"),
            (int64s(m1=4), "the 1 largest of 4 neighbours cannot be taken of 6"),
            (int64s(n2=0), "the 0 largest of 4 neighbours cannot be taken of 8"),
            (int64s(m2=-4), "the 2 largest of -4 neighbours cannot be taken of 8"),
            *((int64s(positions2=p), f"6 rows are no samples of {p}") for p in (4, 12, *LARGE)),
            ({"pools1": True, **int64s(height1=4)}, "windows of 4x2 do not divide"),
            ({"dafter": result(0)}, "gradients must have the shapes and the dtype"),
            ({"dscale": result(1, 8)}, "gradients must have the shapes and the dtype"),
            ({"dw1": result(6, 8)}, "gradients must have the shapes and the dtype"),
        )
    ),
]


@pytest.mark.parametrize(
    ("make", "changes", "says"),
    WRONG,
    ids=[f"{make.__name__}-{'-'.join(c)}-{says}" for make, c, says in WRONG],
)
def test_what_does_not_fit_is_named(make, changes, says):
    said = refused(make().but(**changes))
    assert "sparsemlp engine 'cpu': " in said
    assert says in said


@CALLS
def test_a_missing_operand_or_attribute_is_refused(make):
    assert "Wrong number of arguments" in refused(make().but(x=None))
    for name in make().options:
        assert "Wrong number of attributes" in refused(make().but(**{name: None}))
        assert "Wrong scalar data type" in refused(make().but(**{name: np.float32(1.5)}))


def test_without_blocks_scales_and_biases_their_buffers_are_empty():
    nothing = {name: ones(0) for name in ("scale", "shift", "b1", "b2")}
    no_blocks = int64s(height1=0, width1=0, height2=0, width2=0)
    call = pruned_mlp().but(**nothing, **no_blocks, norms1=result(0), norms2=result(0))
    y, first, second = call()
    assert first.size == second.size == 0
    assert np.all(y >= 1)
    empty = {f"d{name}": result(0) for name in ("scale", "shift", "after", "b1", "b2")}
    kept = {"kept_x": ids(), "kept_hidden": ids()}
    call = pruned_mlp_gradient().but(
        **nothing, **no_blocks, **empty, **kept, after=ones(0), **int64s(m1=0, m2=0)
    )
    assert [a.size for a in call()] == [48, 48, 0, 48, 0, 0, 0, 0]
