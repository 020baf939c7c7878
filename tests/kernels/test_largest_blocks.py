"""The blocks of an activation with the largest norm, as engine `cpu` finds them, against NumPy."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import ENGINES

SAMPLES, CHANNELS, N_IN = 3, 16, 24
N = SAMPLES * CHANNELS
CPU = ENGINES["cpu"]
axes = pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])
BLOCKS = [(8, 8), (16, 4), (4, 12), (1, 24), (48, 1), (6, 8), (1, 1)]


def by_definition(rows: np.ndarray, block: tuple[int, int], k: int):
    """Ids and values of the k largest blocks of rows `[N, N_IN]`; ties keep the lower id."""
    height, width = block
    tiles = rows.reshape(N // height, height, N_IN // width, width).swapaxes(1, 2)
    flat = tiles.reshape(-1, height, width)
    norms = np.sqrt(np.square(flat.astype(np.float64)).sum(axis=(1, 2)))
    norms = np.where(np.isnan(norms), np.inf, norms)
    ids = np.sort(np.argsort(-norms, kind="stable")[:k])
    return flat[ids], ids


def shaped(rows: Any, axis: int, dtype: Any = jnp.float32) -> jax.Array:
    """Rows as a layer along that axis has its input."""
    x = jnp.asarray(rows, dtype).reshape(SAMPLES, CHANNELS, N_IN)
    return x if axis == -1 else x.swapaxes(1, 2)


@functools.partial(jax.jit, static_argnames=("block", "k", "axis"))
def largest(x, block, k, axis):
    return CPU.largest_blocks(x, block, k, axis)


@axes
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_they_are_the_k_largest_in_order(axis, dtype, block):
    rng = np.random.default_rng(0)
    rows = np.asarray(jnp.asarray(rng.normal(size=(N, N_IN)), dtype), np.float64)
    k = math.ceil(0.3 * N * N_IN / math.prod(block))
    values, ids = largest(shaped(rows, axis, dtype), block, k, axis)
    expected_values, expected_ids = by_definition(rows, block, k)
    assert values.dtype == dtype
    assert ids.dtype == jnp.int32
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_array_equal(np.asarray(values, np.float64), expected_values)


@axes
def test_equal_norms_keep_the_lower_id(axis):
    rows = np.random.default_rng(1).integers(1, 3, (N // 4, N_IN // 4)).repeat(4, 0).repeat(4, 1)
    for k in (1, 20, 71, 72):
        values, ids = largest(shaped(rows, axis), (4, 4), k, axis)
        expected_values, expected_ids = by_definition(rows, (4, 4), k)
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_array_equal(values, expected_values)


@axes
def test_nan_and_infinity_are_the_largest_and_zeros_the_smallest(axis):
    rows = np.zeros((N, N_IN))
    rows[9, 9], rows[20, 1], rows[47, 23], rows[0, 0] = np.nan, -np.inf, np.inf, 1e-3
    values, ids = largest(shaped(rows, axis), (8, 8), 5, axis)
    # Blocks of 6 x 3: NaN at (1, 1), infinities at (2, 0) and (5, 2), the small one at (0, 0).
    np.testing.assert_array_equal(ids, [0, 1, 4, 6, 17])
    assert np.isnan(values[2]).sum() == 1
    assert np.isinf(values[3]).sum() == np.isinf(values[4]).sum() == 1


def test_it_maps_over_a_batch():
    rows = np.random.default_rng(2).normal(size=(2, N, N_IN))
    x = jnp.asarray(rows, jnp.float32).reshape(2, SAMPLES, CHANNELS, N_IN)
    mapped = jax.jit(jax.vmap(lambda x: CPU.largest_blocks(x, (8, 8), 5, -1)))(x)
    for i in range(2):
        for found, one in zip(mapped, largest(x[i], (8, 8), 5, -1), strict=True):
            np.testing.assert_array_equal(found[i], one)


def test_other_engines_leave_it_to_the_caller():
    assert ENGINES["reference"].largest_blocks(jnp.ones((8, 8)), (2, 2), 3, -1) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"block": (7, 8)}, "do not divide the activation"),
        ({"block": (8, 7)}, "do not divide the activation"),
        ({"k": 19}, "one for each of at most 18"),
        ({"x": jnp.ones((N, N_IN), jnp.float16)}, "only float32 and bfloat16"),
        ({"axis": -3}, "axis -3 is not -1 or -2"),
    ],
)
def test_wrong_operands_are_an_error_and_no_crash(changes, says, unchecked):
    good: dict[str, Any] = {"x": jnp.ones((N, N_IN)), "block": (8, 8), "k": 3, "axis": -1}
    with pytest.raises(Exception, match=says):
        jax.block_until_ready(CPU.largest_blocks(**{**good, **changes}))
