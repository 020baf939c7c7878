"""Who computes a masked convolution, and with what."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from native import needs_native

from pallas_kernels import ENGINES
from sparsemlp import BlockMask, GridMask, select_blocks, sparse_conv
from sparsemlp.engines import choose_convolving
from sparsemlp.errors import InputError
from sparsemlp.masked_kernel import Engines, masked_kernel
from sparsemlp.masks import Mask
from sparsemlp.rules import Backward

MATRIX = (288, 64)
WIDE = BlockMask(jnp.arange(4, dtype=jnp.int32), MATRIX, (32, 32))


def named(*names: str) -> Engines:
    return Engines(*(ENGINES[name] for name in names))


def engines(mask: Mask, engine: str, n_channels: int = 32) -> Engines:
    choose = functools.partial(choose_convolving, n_channels=n_channels, n_rows=512)
    found = masked_kernel(mask, -1, "float32", "masked", engine, choose)
    assert found is not None
    return found.engines


@needs_native
def test_auto_multiplies_the_kept_blocks_where_that_pays():
    assert engines(WIDE, "auto") == named("cpu", "cpu", "cpu")
    flat = BlockMask(jnp.arange(100, dtype=jnp.int32), MATRIX, (16, 1))
    assert engines(flat, "auto") == named("cpu", "reference", "reference")


@needs_native
def test_an_engine_that_is_named_computes_all_of_it():
    narrow = BlockMask(jnp.arange(4, dtype=jnp.int32), MATRIX, (1, 1))
    assert engines(narrow, "cpu") == named("cpu", "cpu", "cpu")
    assert engines(WIDE, "reference") == named("reference", "reference", "reference")


@pytest.mark.usefixtures("interpreted")
def test_blocks_of_several_positions_are_left_to_others_by_auto_and_refused_by_name(monkeypatch):
    triton = ENGINES["triton"]
    monkeypatch.setattr(type(triton), "is_measured_here", lambda self: True)
    monkeypatch.setattr(type(triton), "pays_convolving", lambda self, *_: True)
    monkeypatch.setattr("sparsemlp.engines.ENGINES", {"triton": triton} | ENGINES)
    matrix = BlockMask(jnp.arange(3, dtype=jnp.int32), (4 * 16, 64), (32, 32))
    assert "triton" not in [e.name for e in engines(matrix, "auto", n_channels=16)]
    with pytest.raises(InputError, match=r"'triton' cannot run here.* must divide its 16 input"):
        engines(matrix, "triton", n_channels=16)
    for name in ("auto", "triton"):
        assert engines(WIDE, name) == named("triton", "triton", "triton")


@needs_native
def test_a_program_with_kept_blocks_alone_has_no_dense_convolution():
    x, kernel = jnp.ones((2, 6, 6, 32)), jnp.ones((3, 3, 32, 64))
    mask = select_blocks(kernel, (32, 32), 0.8)

    def text(backward: Backward) -> str:
        def call(x, kernel):
            return jnp.sum(sparse_conv(x, kernel, mask=mask, backward=backward) ** 2)

        return str(jax.make_jaxpr(jax.grad(call, argnums=(0, 1)))(x, kernel))

    assert "conv_general_dilated" not in text("masked")
    assert text("masked").count("ffi_call[") == 3
    assert text("straight_through").count("conv_general_dilated[") == 1  # dW, of the whole kernel
    assert text("dense").count("conv_general_dilated[") == 2


def test_a_grid_says_what_the_backward_pass_uses():
    rng = np.random.default_rng(0)
    x, kernel, dy = (
        jnp.asarray(rng.normal(size=s), jnp.float32)
        for s in ((2, 3, 3, 4), (3, 3, 4, 8), (2, 3, 3, 8))
    )
    mask = select_blocks(kernel, (4, 4), 0.5)

    def gradients(mask, backward: Backward = "masked"):
        def call(x, kernel):
            return sparse_conv(x, kernel, mask=mask, backward=backward, engine="reference")

        return jax.vjp(call, x, kernel)[1](dy)

    cases: tuple[tuple[Backward, tuple[bool, bool]], ...]
    cases = (("dense", (False, False)), ("straight_through", (True, False)))
    for backward, flags in cases:
        says = GridMask(mask.grid(), mask.kernel_shape, mask.block, *map(jnp.asarray, flags))
        for a, b in zip(gradients(says), gradients(mask, backward), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
