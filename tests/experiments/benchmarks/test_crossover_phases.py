"""What is compared computes the same: with every block kept, native results are dense ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.crossover_phases import PAIRS, Case, comparisons

from pallas_kernels import Cpu

CASES = [Case((8, 16), -1, 12, 4), Case((16, 8), -1, 12, 4), Case((8, 16), -2, 12, 4)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_native_and_dense_agree_where_no_block_is_dropped(case: Case) -> None:
    full = case.layer((4, 4), 8)
    if reason := Cpu().reason_against(full, jax.default_backend()):
        pytest.skip(reason)
    compared = comparisons(case)
    products = {"product", "input_gradient", "kernel_gradient"}
    assert set(compared) == products | (set(PAIRS) if case.axis == -1 else set())
    for found in compared.values():
        native = found.native(full)(jnp.arange(8, dtype=jnp.int32), *found.operands)
        assert_close(native, found.dense(*found.operands))
        if found.stepwise is not None:
            stepwise = found.stepwise(full)(jnp.arange(8, dtype=jnp.int32), *found.operands)
            assert_close(native, stepwise)


def assert_close(native: Any, dense: Any) -> None:
    """The same arrays in the same order; sums of up to 16 numbers, a few of them in a row."""
    natives, denses = jax.tree.leaves(native), jax.tree.leaves(dense)
    assert [a.shape for a in natives] == [a.shape for a in denses]
    for a, b in zip(natives, denses, strict=True):
        scale = float(np.max(np.abs(b)))
        np.testing.assert_allclose(a, b, rtol=0, atol=64 * np.finfo(np.float32).eps * scale)
