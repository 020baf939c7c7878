"""Products with many tiles of rows, which the small shapes of the conformance test do not reach."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import ENGINES, Engine, Reference, SparseLayer

EPS = np.finfo(np.float32).eps
AXES = pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])


def normal(*shape: int, dtype: Any = jnp.float32, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def operands(block: tuple[int, int], axis: Any, dtype: Any = jnp.float32) -> tuple[Any, ...]:
    """A layer, x, dy, kernel, bias and the kept ids: one block row is full, one is empty."""
    n_in, n_out = 4 * block[1], 6 * block[0]
    shape = (2, 150, n_in) if axis == -1 else (3, n_in, 150)
    x = normal(*shape, dtype=dtype)
    dy = normal(*(n_out if n == n_in else n for n in shape), dtype=dtype, seed=1)
    kept = np.array([0, 1, 2, 3, 4, 5, 9, 20], np.int32)
    layer = SparseLayer((n_in, n_out), block, kept.size, axis, jnp.dtype(dtype).name)
    kernel = normal(n_in, n_out, dtype=dtype, seed=2)
    return layer, x, dy, kernel, normal(n_out, dtype=dtype, seed=3), jnp.asarray(kept)


def both(engine: Engine, layer: SparseLayer, x: Any, dy: Any, kernel: Any, bias: Any, kept: Any):
    return (
        engine.product(x, kernel, bias, kept, layer),
        engine.input_gradient(dy, kernel, kept, layer),
    )


@AXES
@pytest.mark.parametrize("block", [(16, 32), (128, 64)], ids=str)
def test_rows_of_several_tiles_and_samples_are_all_there(axis, block):
    layer, *arrays = operands(block, axis)
    found, wanted = (
        jax.jit(lambda *a, e=e: both(e, layer, *a))(*arrays)
        for e in (ENGINES["triton"], Reference())
    )
    for got, want in zip(found, wanted, strict=True):
        # Sums of up to 6 blocks; rounding is in proportion to the root sum of squares.
        scale = 4 * EPS * np.sqrt(6 * max(block)) * np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=scale)
