"""How the kernels of engine `triton` for two layers are cut, and one product after the other."""

import dataclasses
import json

import jax
import numpy as np
import pairs
import pytest

from pallas_kernels import SparseLayer, Triton, tuning
from pallas_kernels.device_table import Problem
from pallas_kernels.triton import configurations, pair_tiles
from pallas_kernels.triton.pair_tiles import APART, GRADIENTS_APART, SUMS_OF_A_THREAD

CHOOSE = {"mlp": pair_tiles.mlp_tiles, "mlp_gradients": pair_tiles.gradient_tiles}
FUSED = {"mlp": pair_tiles.fused_tiles, "mlp_gradients": pair_tiles.fused_gradient_tiles}
NONE = {"mlp": APART, "mlp_gradients": GRADIENTS_APART}
BOTH = pytest.mark.parametrize("kernel", CHOOSE)
SPACES = [(384, 32), (768, 64), (768, 16), (64, 16), (384, 128)]


def problem(kernel: str, width: int, side: int, dtype: str = "bfloat16") -> Problem:
    block, shape = (side, side), (width, 4 * width)
    return Problem("triton", configurations.VERSION, kernel, dtype, block, shape, -1, 0.2, 8192)


def layers_of(width: int, side: int, dtype: str = "bfloat16") -> tuple[SparseLayer, SparseLayer]:
    first = SparseLayer((width, 4 * width), (side, side), 5, -1, dtype)
    return first, dataclasses.replace(first, kernel_shape=(4 * width, width))


def is_fusable(kernel: str, width: int, side: int, dtype: str = "bfloat16") -> bool:
    return FUSED[kernel](layers_of(width, side, dtype)) is not None


@BOTH
def test_a_pair_can_be_fused_where_registers_hold_the_sums_of_all_features(kernel):
    with jax.default_matmul_precision("default"):
        assert all(is_fusable(kernel, width, 32, "float32") for width in (64, 384, 768))
    assert is_fusable(kernel, 384, 16)
    assert not is_fusable(kernel, 768, 16)
    assert not is_fusable(kernel, 1024, 32)


@BOTH
def test_without_tensor_cores_one_product_follows_the_other(kernel):
    with jax.default_matmul_precision("highest"):
        assert not is_fusable(kernel, 384, 32, "float32")
        assert Triton().configurations(problem(kernel, 384, 32, "float32")) == [NONE[kernel]]
        assert is_fusable(kernel, 384, 32)


@BOTH
@pytest.mark.parametrize(("width", "side"), SPACES)
def test_one_product_follows_the_other_and_what_can_be_fused_is_tried(kernel, width, side):
    own, layers = problem(kernel, width, side), layers_of(width, side)
    found = Triton().configurations(own)
    assert CHOOSE[kernel](layers, own) is None
    assert found[0] == NONE[kernel]
    assert FUSED[kernel](layers) in (found[1], None)
    assert len(found) == len(set(found)) > 2
    for tiles in found:
        # As a table holds them.
        fields = json.loads(json.dumps(dataclasses.asdict(tiles)))
        assert type(tiles)(**fields) == tiles


@BOTH
@pytest.mark.parametrize(("width", "side"), SPACES)
def test_a_search_space_holds_what_registers_hold(kernel, width, side):
    found = Triton().configurations(problem(kernel, width, side))
    fused = [tiles for tiles in found if tiles not in (APART, GRADIENTS_APART)]
    assert fused
    for tiles in fused:
        of_a_block = tiles.rows * side / (32 * tiles.warps)
        assert tiles.features / side * of_a_block <= SUMS_OF_A_THREAD


def test_what_is_too_wide_has_no_other_choice():
    assert Triton().configurations(problem("mlp", 1024, 64)) == [APART]
    assert Triton().configurations(problem("mlp_gradients", 1024, 64)) == [GRADIENTS_APART]


@BOTH
def test_a_pair_is_cut_as_it_was_measured(kernel):
    own, layers = problem(kernel, 384, 32), layers_of(384, 32)
    apart, *others = Triton().configurations(own)[:3]
    for measured, wanted in ((apart, None), *zip(others, others, strict=True)):
        with tuning.forced(measured):
            assert CHOOSE[kernel](layers, own) == wanted


@BOTH
@pytest.mark.parametrize(
    ("shapes", "block"),
    [
        (((1536, 384), (384, 1536)), (32, 32)),  # the wide sides outside
        (((384, 1536), (1536, 4096)), (32, 32)),  # another width
        (((384, 1536), (1536, 384)), (64, 32)),  # another block in the second layer
    ],
    ids=["turned", "wider", "block"],
)
def test_a_cut_of_another_pair_is_not_taken(kernel, shapes, block):
    """A table knows pairs by the two widths and the first block."""
    layers = layers_of(384, 32)
    layers = (
        dataclasses.replace(layers[0], kernel_shape=shapes[0]),
        dataclasses.replace(layers[1], kernel_shape=shapes[1], block=block),
    )
    own = layers[0].problem("triton", configurations.VERSION, kernel, 8192)
    for measured in Triton().configurations(problem(kernel, 384, 32))[1:3]:
        with tuning.forced(measured):
            assert CHOOSE[kernel](layers, own) is None


@pytest.mark.parametrize("forced", NONE.values(), ids=NONE)
def test_where_one_of_result_and_gradients_is_forced_apart_the_other_is_apart_too(forced):
    """The tuner forces the cut of one, and its time of `mlp` is that of both."""
    pair = pairs.draw(((32, 32), (32, 32)), n_rows=70, width=64, hidden=128)
    engine, operands = Triton(interpret=True), (pair.weights, pair.layers, True)

    def call(x, dy):
        return engine.mlp(x, *operands), engine.mlp_gradients(x, dy, *operands)

    with tuning.forced(forced):
        assert "sparsemlp_mlp" not in str(jax.make_jaxpr(call)(pair.x, pair.dy))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kernel", CHOOSE)
def test_one_after_the_other_computes_the_pair(kernel, dtype):
    pair = pairs.draw(((32, 32), (32, 32)), n_rows=70, width=64, hidden=128, dtype=dtype)
    engine = Triton(interpret=jax.default_backend() != "gpu")
    operands = pair.weights, pair.layers, True

    def call(x, dy):
        if kernel == "mlp":
            return {"y": engine.mlp(x, *operands)}
        dx, (first, second) = engine.mlp_gradients(x, dy, *operands)
        of_first = {"dw1": first.kernel, "db1": first.bias}
        return {"dx": dx, **of_first, "dw2": second.kernel, "db2": second.bias}

    batch = pair.x.reshape(2, 35, -1), pair.dy.reshape(2, 35, -1)
    names = str(jax.make_jaxpr(call)(*batch))
    assert "sparsemlp_mlp" not in names
    assert ("sparsemlp_gelu" if kernel == "mlp" else "sparsemlp_gradient") in names
    found = jax.jit(call)(*batch)
    for name in {"y", "dx"} & set(found):
        assert found[name].shape == batch[0].shape
        found[name] = np.asarray(found[name]).reshape(pair.x.shape)
    pairs.assert_near(pair, **found)
