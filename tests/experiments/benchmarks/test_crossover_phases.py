"""What is compared computes the same, beside what it is meant to be beside."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.crossover_phases import PAIRS, Case, comparisons

from pallas_kernels import Cpu

CASES = [Case((8, 16), -1, 12, 4), Case((16, 8), -1, 12, 4), Case((8, 16), -2, 12, 4)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_ways_agree(case: Case) -> None:
    layer = case.layer((4, 4), 3)
    if reason := Cpu().reason_against(layer, jax.default_backend()):
        pytest.skip(reason)
    compared = comparisons(case)
    products = {"product", "input_gradient", "kernel_gradient"}
    assert set(compared) == products | (set(PAIRS) if case.axis == -1 else set())
    for found in compared.values():
        ways = [*found.native, *found.others]
        results = [
            way(layer, jnp.arange(0, 6, 2, dtype=jnp.int32), *found.operands) for way in ways
        ]
        for result in results[1:]:
            assert_close(results[0], result)


@pytest.mark.parametrize("axis", [-1, -2])
def test_a_kernel_gradient_is_compared_beside_native_and_beside_other_products(axis: Any) -> None:
    case = Case((8, 16), axis, 12, 4)
    layer, found = case.layer((4, 4), 1), comparisons(case)["kernel_gradient"]
    if reason := Cpu().reason_against(layer, jax.default_backend()):
        pytest.skip(reason)
    given = (jnp.zeros(1, jnp.int32), *found.operands)

    def native_calls(way: Any) -> list[str]:
        traced = jax.make_jaxpr(lambda *given: way(layer, *given))(*given)
        return sorted(re.findall(r"sparsemlp_(\w+)", str(traced)))

    assert [native_calls(way) for way in found.native] == [
        ["gradient"],
        ["gradient", "multiply", "multiply"],
    ]
    assert [native_calls(way) for way in found.others] == [[], ["multiply", "multiply"]]


def assert_close(native: Any, dense: Any) -> None:
    """The same arrays in the same order; sums of up to 16 numbers, a few of them in a row."""
    natives, denses = jax.tree.leaves(native), jax.tree.leaves(dense)
    assert [a.shape for a in natives] == [a.shape for a in denses]
    for a, b in zip(natives, denses, strict=True):
        scale = float(np.max(np.abs(b)))
        np.testing.assert_allclose(a, b, rtol=0, atol=64 * np.finfo(np.float32).eps * scale)
