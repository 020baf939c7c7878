"""Every engine computes what `reference` computes in float64, within a tolerance that is derived.

The default run covers every pair of choices; `-m exhaustive` runs every combination.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import (
    AXES,
    COVERING,
    DTYPES,
    EVERY_CASE,
    EVERY_ENGINE,
    FACTORS,
    OUTPUTS,
    PATTERNS,
    SMALL,
    Case,
    Operands,
    assert_conforms,
    check,
    check_pattern,
    compiled,
    draw,
    expected,
    operands_of,
    skip_unless_able,
    small_mask,
    value_and_gradients,
)

from pallas_kernels import ENGINES, Reference, dense
from pallas_kernels.layout import dense_mask


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


@EVERY_ENGINE
@AXES
@DTYPES
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_mask_may_leave_rows_and_columns_of_blocks_empty_or_full(engine, axis, dtype, pattern):
    check_pattern(engine, axis, dtype, pattern)


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
def test_a_mask_that_keeps_no_block_leaves_the_bias_alone(engine, axis):
    mask = small_mask(())
    skip_unless_able(engine, mask, axis, "float32")
    operands = draw(SMALL, axis, "float32", mask)
    actual = compiled(operands, engine, axis, "masked")
    assert_conforms(actual, expected(operands, axis, "masked"), "float32")


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
    # What JAX imports when it first interprets a kernel adds an option, and with it a trace.
    compiled(operands, engine, axis, "masked")

    @jax.jit
    def run(operands: Operands) -> tuple[jax.Array, ...]:
        traces.append(operands)
        return value_and_gradients(operands, engine, axis, "masked")

    outcomes = {np.asarray(run(operands._replace(mask=mask))[0]).tobytes() for mask in masks}
    assert (len(traces), len(outcomes)) == (1, len(masks))
