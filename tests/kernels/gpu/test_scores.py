"""Norms of blocks from one pass over a kernel, and the selection that they lead to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import ENGINES, Triton
from sparsemlp.engines import engine_scores
from sparsemlp.selection import block_scores, select_blocks

EPS = float(np.finfo(np.float32).eps)


def normal(*shape: int, dtype: str = "float32") -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)


@pytest.mark.parametrize("score", ["l1", "l2"])
@pytest.mark.parametrize(
    ("shape", "block", "dtype"),
    [
        ((96, 160), (32, 32), "float32"),  # outputs of two programs, the second not full
        ((64, 96), (16, 64), "bfloat16"),  # inputs in several chunks
        ((128, 384), (128, 64), "float32"),  # a block as wide as a tile
    ],
    ids=str,
)
def test_scores_are_the_norms(shape, block, dtype, score):
    kernel = normal(*shape, dtype=dtype)
    found = jax.jit(lambda k: ENGINES["triton"].block_scores(k, block, score))(kernel)
    assert found is not None
    (rows, cols), (n_in, n_out) = block, shape
    tiles = np.asarray(kernel, np.float64).reshape(n_in // cols, cols, n_out // rows, rows)
    wanted = (
        np.abs(tiles).sum(axis=(1, 3)) if score == "l1" else np.sqrt((tiles**2).sum(axis=(1, 3)))
    )
    assert found.dtype == jnp.float32
    # Sums of terms of one sign, in any order: their roundings do not cancel, nor do they grow.
    np.testing.assert_allclose(found, wanted, rtol=EPS * np.sqrt(rows * cols))


def test_the_same_blocks_are_kept_as_by_xla_and_of_equal_ones_the_first():
    kernel = normal(64, 160)
    kernel = kernel.at[:, 96:128].set(kernel[:, :32])
    scores = np.asarray(block_scores(kernel, (32, 32), engine="triton"))
    np.testing.assert_array_equal(scores[:, 3], scores[:, 0])
    np.testing.assert_allclose(scores, block_scores(kernel, (32, 32)), rtol=32 * EPS)
    kept, wanted = (
        select_blocks(kernel, (32, 32), 0.5, engine=engine).kept for engine in ("triton", "auto")
    )
    np.testing.assert_array_equal(kept, wanted)


def test_what_has_no_kernel_is_scored_by_xla(monkeypatch):
    kernel = normal(48, 96)
    for block, score in (((32, 48), "l2"), ((32, 16), "spectral")):
        assert engine_scores("triton", kernel, block, score) is None
        found = block_scores(kernel, block, score, engine="triton")
        np.testing.assert_array_equal(found, block_scores(kernel, block, score))
    monkeypatch.setitem(ENGINES, "triton", Triton())
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert engine_scores("triton", kernel, (32, 16), "l2") is None


def test_auto_takes_no_scores_that_were_not_measured(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert engine_scores("auto", normal(32, 64), (32, 32), "l2") is None


def test_no_gradient_flows_through_the_scores():
    def loss(kernel: jax.Array) -> jax.Array:
        return jnp.sum(block_scores(kernel, (32, 32), engine="triton") * kernel[0, 0])

    gradient = jax.grad(loss)(normal(32, 64))
    assert np.count_nonzero(gradient) == 1
