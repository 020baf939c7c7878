"""What engine `mosaic` does on Ampere, and what it leaves to others.

JAX interprets its kernels with copies that are done at once and products by `jnp.dot`: what their
waits hold back no test without such a GPU can see.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from test_product_program import INTERPRETED
from test_products import EPS, normal

from pallas_kernels import Mosaic, SparseLayer
from pallas_kernels.layout import dense_mask
from pallas_kernels.mosaic import ampere_gradient, ampere_products

A100, RTX_4090 = "8.0", "8.9"
HALF = float(jnp.finfo(jnp.bfloat16).eps) / 2


def problem(
    block: tuple[int, int], n_in: int, n_out: int, ratio: float
) -> tuple[SparseLayer, np.ndarray]:
    """A layer, and which of its weights are kept; the second block column keeps none."""
    down, across = n_in // block[1], n_out // block[0]
    blocks = np.random.default_rng(3).uniform(size=(down, across)) >= ratio
    blocks[0, 0] = True
    blocks[:, 1] = False
    kept = jnp.asarray(np.flatnonzero(blocks), jnp.int32)
    layer = SparseLayer((n_in, n_out), block, kept.size, -1, "bfloat16")
    return layer, np.asarray(dense_mask(kept, layer.kernel_shape, block))


def ids(layer: SparseLayer, mask: np.ndarray) -> Any:
    rows, cols = layer.block
    return jnp.asarray(np.flatnonzero(mask[::cols, ::rows]), jnp.int32)


def assert_rounded(found: Any, exact: np.ndarray, squares: np.ndarray, n: int) -> None:
    """One rounding to bfloat16 of float32 sums of n terms, whose squares have these sums."""
    found = np.asarray(found).astype(np.float64)
    bound = HALF * np.abs(exact) + 4 * EPS * np.sqrt(n * squares)
    assert (np.abs(found - exact) <= bound).all()


@pytest.mark.parametrize(
    ("capability", "block", "fits"),
    [
        (A100, (16, 16), False),
        (A100, (16, 32), True),
        (A100, (128, 128), True),
        (RTX_4090, (128, 128), False),
        (RTX_4090, (64, 128), True),
    ],
)
def test_blocks_that_do_not_fit_are_left_to_triton(capability, block, fits):
    engine = Mosaic(capability=capability)
    reason = engine.reason_against(SparseLayer((256, 256), block, 1, -1, "bfloat16"), "gpu")
    assert (reason is None) == fits
    if reason is not None:
        assert f"{block[0]}x{block[1]}" in reason
        assert f"compute capability {capability}" in reason
        assert "'triton'" in reason


def test_float32_is_left_to_triton():
    layer = SparseLayer((256, 256), (32, 32), 3, -1, "float32")
    reason = Mosaic(capability=A100).reason_against(layer, "gpu")
    assert reason is not None
    assert "bfloat16, not float32: engine 'triton'" in reason


@INTERPRETED
@pytest.mark.parametrize("axis", [-1, -2], ids=["features", "tokens"])
def test_the_engine_takes_the_kernels_of_its_gpu(axis, monkeypatch):
    used = []

    def spy(module: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            used.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    spy(ampere_products, "multiply")
    spy(ampere_gradient, "kernel_gradient")
    layer, mask = problem((16, 32), 64, 32, 0.0)
    kept = ids(layer, mask)
    layer = SparseLayer(layer.kernel_shape, layer.block, kept.size, axis, "bfloat16")
    along = {-1: lambda n: (2, 3, n), -2: lambda n: (2, n, 3)}[axis]
    x, dy = normal(*along(64), dtype=jnp.bfloat16), normal(*along(32), dtype=jnp.bfloat16, seed=1)
    w = normal(64, 32, dtype=jnp.bfloat16, seed=2)
    engine = Mosaic(interpret=True, capability=A100)
    y = engine.product(x, w, None, kept, layer)
    dx = engine.input_gradient(dy, w, kept, layer)
    dw = engine.kernel_gradient(x, dy, kept, layer)
    assert used == ["multiply", "multiply", "kernel_gradient"]
    a, g = (np.moveaxis(np.asarray(v).astype(np.float64), axis, -1) for v in (x, dy))
    b = np.asarray(w).astype(np.float64) * mask
    flat_a, flat_g = a.reshape(-1, 64), g.reshape(-1, 32)
    assert_rounded(np.moveaxis(np.asarray(y), axis, -1), a @ b, a**2 @ b**2, 64)
    assert_rounded(np.moveaxis(np.asarray(dx), axis, -1), g @ b.T, g**2 @ b.T**2, 32)
    assert_rounded(dw, flat_a.T @ flat_g * mask, (flat_a**2).T @ flat_g**2 * mask, 6)
