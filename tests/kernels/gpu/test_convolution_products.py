"""Convolutions and their input gradients by Triton kernels, in many tiles of rows."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_products import normal

from pallas_kernels import ENGINES, SparseLayer
from pallas_kernels.dense_convolution import Geometry
from pallas_kernels.lists import listed
from pallas_kernels.triton import convolutions
from pallas_kernels.triton.launch import Tiles
from pallas_kernels.tuning import forced
from sparsemlp import BlockMask, sparse_conv
from sparsemlp.mask_trees import list_masks

IMAGES, N_OUT, SIZE = (4, 7, 5, 32), 64, (3, 3)
MATRIX, BLOCK = (288, 64), (16, 32)
KEPT = jnp.asarray([0, 2, 3, 9, 14, 22, 23, 30, 35], jnp.int32)
LAYER = SparseLayer(MATRIX, BLOCK, KEPT.size, -1, "float32")
WALKS = {1: Geometry((1, 1), ((1, 1), (1, 1))), 2: Geometry((2, 2), ((0, 1), (1, 1)))}
EPS = float(jnp.finfo(jnp.float32).eps)


def operands(stride: int) -> tuple[jax.Array, ...]:
    outputs = WALKS[stride].outputs(IMAGES[1:3], SIZE)
    shapes = (IMAGES, (*SIZE, IMAGES[3], N_OUT), (N_OUT,), (IMAGES[0], *outputs, N_OUT))
    x, kernel, bias, dy = (normal(*shape, seed=i) for i, shape in enumerate(shapes))
    return x, kernel, bias, dy


@functools.partial(jax.jit, static_argnames=("engine", "stride", "rows", "with_lists"))
def products(engine, stride, rows, x, kernel, bias, dy, with_lists=False):
    own, geometry = ENGINES[engine], WALKS[stride]
    kept: Any = listed(KEPT, (9, 4)) if with_lists else KEPT
    with forced(Tiles(rows, warps=4, stages=2)):
        y = own.convolution(x, kernel, bias, kept, LAYER, geometry)
        dx = own.convolution_input_gradient(dy, kernel, kept, LAYER, IMAGES[1:3], geometry)
    return y, dx


@pytest.mark.parametrize("stride", WALKS)
@pytest.mark.parametrize("rows", [16, 64])
def test_tiles_of_rows_are_what_the_reference_computes(stride, rows):
    given = operands(stride)
    found, expected = (products(name, stride, rows, *given) for name in ("triton", "reference"))
    for a, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=0, atol=16 * EPS * np.sqrt(288) * 4)


def test_lists_made_before_change_no_bit():
    given = operands(1)
    alone = products("triton", 1, 16, *given)
    listed_before = products("triton", 1, 16, *given, with_lists=True)
    for a, b in zip(alone, listed_before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_each_image_of_a_batch_of_batches_is_its_own():
    x, kernel, bias, dy = operands(1)
    together = jax.vmap(lambda x, dy: products("triton", 1, 16, x, kernel, bias, dy))(
        jnp.stack([x, 2 * x]), jnp.stack([dy, 3 * dy])
    )
    for pair, (a, b) in zip(
        together,
        zip(
            products("triton", 1, 16, x, kernel, bias, dy),
            products("triton", 1, 16, 2 * x, kernel, bias, 3 * dy),
            strict=True,
        ),
        strict=True,
    ):
        np.testing.assert_allclose(pair, jnp.stack([a, b]), rtol=1e-5, atol=1e-4)


def test_images_that_are_too_many_and_masks_without_blocks_are_the_references(monkeypatch):
    x, kernel, bias, dy = operands(1)
    engine, geometry = ENGINES["triton"], WALKS[1]
    none = SparseLayer(MATRIX, BLOCK, 0, -1, "float32")
    y = engine.convolution(x, kernel, bias, KEPT[:0], none, geometry)
    np.testing.assert_array_equal(y, jnp.broadcast_to(bias, y.shape))
    monkeypatch.setattr(convolutions, "_MOST_NUMBERS", 1000)
    for found, expected in zip(
        (
            engine.convolution(x, kernel, bias, KEPT, LAYER, geometry),
            engine.convolution_input_gradient(dy, kernel, KEPT, LAYER, IMAGES[1:3], geometry),
            *engine.convolution_gradients(x, dy, KEPT, LAYER, SIZE, geometry),
        ),
        (
            ENGINES["reference"].convolution(x, kernel, bias, KEPT, LAYER, geometry),
            ENGINES["reference"].convolution_input_gradient(
                dy, kernel, KEPT, LAYER, IMAGES[1:3], geometry
            ),
            *ENGINES["reference"].convolution_gradients(x, dy, KEPT, LAYER, SIZE, geometry),
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


def test_training_with_lists_and_on_devices_traces_these_kernels():
    """Under `shard_map` JAX interprets no kernel that it checks; it checks the trace itself."""
    x, kernel, _, dy = operands(1)
    mask = list_masks({"kernel": BlockMask(KEPT, MATRIX, BLOCK)}, "triton")["kernel"]

    def gradients(x, kernel, dy):
        def loss(x, kernel):
            y = sparse_conv(x, kernel, mask=mask, engine="triton")
            return jax.lax.psum(jnp.vdot(y, dy), "data")

        return jax.grad(loss, argnums=(0, 1))(x, kernel)

    split, whole = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.shard_map(
        gradients, mesh=mesh, in_specs=(split, whole, split), out_specs=(split, whole)
    )
    text = str(jax.make_jaxpr(sharded)(x, kernel, dy))
    for name in ("convolution", "convolution_transposed", "convolution_gradient"):
        assert text.count(f"name=sparsemlp_{name}\n") == 1
    assert "conv_general_dilated" not in text
