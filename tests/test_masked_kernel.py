"""Of a mask: what is told of its kernel, who computes its products, and with which blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import ENGINES, Engine, Phase, SparseLayer
from sparsemlp import BlockMask, GridMask, select_blocks
from sparsemlp.errors import InputError
from sparsemlp.masked_kernel import Engines, MaskedKernel, masked_kernel
from sparsemlp.masks import Mask
from sparsemlp.rules import Backward

KERNEL = jax.random.normal(jax.random.key(0), (8, 12))
MASK = select_blocks(KERNEL, (4, 2), 0.5)
GRID = GridMask(MASK.grid(), MASK.kernel_shape, MASK.block)


def choose(name: str, layer: SparseLayer, phase: Phase) -> Engine:
    """Another engine for each product, so that they are told apart."""
    assert (name, layer) == ("auto", MASK.sparse_layer(-1, "float32"))
    names = {"product": "reference", "input_gradient": "cpu", "kernel_gradient": "triton"}
    return ENGINES[names[phase]]


def of(mask: Mask | None, backward: Backward = "dense") -> MaskedKernel | None:
    return masked_kernel(mask, -1, "float32", backward, "auto", choose)


def test_each_product_has_the_engine_that_is_chosen_for_it():
    found = of(MASK)
    assert found is not None
    assert found.engines == Engines(ENGINES["reference"], ENGINES["cpu"], ENGINES["triton"])
    assert found.matrix == SparseLayer((8, 12), (4, 2), 6, -1, "float32")
    assert found.backward == "dense"
    for kept in found.kept:
        np.testing.assert_array_equal(kept, MASK.kept)


def test_nothing_is_masked_without_a_mask_or_by_one_that_keeps_all():
    assert of(None) is None
    assert of(select_blocks(KERNEL, (4, 2), 0.0)) is None


def test_of_a_grid_every_block_may_be_kept_and_the_reference_computes():
    found = masked_kernel(GRID, -2, "bfloat16", "straight_through", "auto", choose)
    assert found is not None
    assert found.engines == Engines(*(ENGINES["reference"],) * 3)
    assert found.matrix == SparseLayer((8, 12), (4, 2), 12, -2, "bfloat16")
    assert found.backward == "straight_through"
    with pytest.raises(InputError, match="GridMask has that as data"):
        masked_kernel(GRID, -1, "float32", "masked", "cpu", choose)


def test_a_grid_that_says_what_the_backward_pass_uses_is_masked_there():
    flags = jnp.asarray(False), jnp.asarray(True)
    found = of(GridMask(MASK.grid(), MASK.kernel_shape, MASK.block, *flags), "straight_through")
    assert found is not None
    assert found.backward == "masked"
    np.testing.assert_array_equal(found.kept.product, MASK.grid())
    assert np.asarray(found.kept.input_gradient).all()
    np.testing.assert_array_equal(found.kept.kernel_gradient, MASK.grid())


@pytest.mark.parametrize("shape", [(8, 12), (2, 2, 2, 12)])
def test_dropped_blocks_of_a_gradient_become_zero(shape):
    found = of(MASK)
    assert found is not None
    gradient = KERNEL.reshape(shape).at[..., 0].set(jnp.nan)
    expected = np.where(MASK.dense(), gradient.reshape(8, 12), 0).reshape(shape)
    np.testing.assert_array_equal(found.zero_dropped(gradient), expected)


def test_a_new_mask_of_as_many_blocks_is_the_same_program():
    traced = []

    @jax.jit
    def n_kept(masked: MaskedKernel) -> jax.Array:
        traced.append(masked.matrix)
        return masked.kept.product.sum()

    other = BlockMask(jnp.arange(6, dtype=jnp.int32), MASK.kernel_shape, MASK.block)
    assert [int(n_kept(m)) for m in map(of, (MASK, other)) if m] == [int(MASK.kept.sum()), 15]
    assert len(traced) == 1
