"""What a layer is given as its mask is one, or it is told why not."""

import jax.numpy as jnp
import numpy as np
import pytest

from sparsemlp import sparse_linear
from sparsemlp.errors import InputError
from sparsemlp.mask_check import check_mask
from sparsemlp.masks import BlockMask, GridMask

GRID = GridMask(jnp.ones((1, 2), bool), (8, 8), (4, 8))


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (GridMask(jnp.array([[1, 0]]), (8, 8), (4, 8)), "give a boolean for each block, (1, 2)"),
        (GridMask(jnp.ones((2, 1), bool), (8, 8), (4, 8)), "(1, 2)"),
        (GridMask(jnp.ones((1, 2), bool), (8, 8), (4, 8), None, True), "of one gradient alone"),
        (GridMask(jnp.ones((1, 2), bool), (8, 8), (4, 8), True, 1), "in_kernel_gradient"),
        (GridMask(jnp.ones((1, 2), bool), (8, 8), (4, 8), 0.0, True), "give one boolean"),
        (GridMask(jnp.ones((1, 2), bool), (8, 8), (4, 8), True, jnp.ones(2, bool)), "bool (2,)"),
        (BlockMask(jnp.zeros((3, 1), jnp.int32), (8, 8), (4, 8)), "jax.vmap"),
        (BlockMask(jnp.ones(1), (8, 8), (4, 8)), "float32 (1,): give int32 [k]"),
        (BlockMask(np.array([1, 0]), (8, 8), (4, 8)), "do not ascend within [0, 2)"),
        (BlockMask(np.array([0, 0]), (8, 8), (4, 8)), "do not ascend within [0, 2)"),
        (BlockMask(np.array([-1, 0]), (8, 8), (4, 8)), "do not ascend within [0, 2)"),
        (BlockMask(np.array([0, 2]), (8, 8), (4, 8)), "give each id once, ascending"),
    ],
)
def test_what_a_mask_cannot_hold_is_refused(mask, says):
    with pytest.raises(InputError) as caught:
        sparse_linear(jnp.ones((2, 8)), jnp.ones((8, 8)), mask=mask)
    assert says in str(caught.value)


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64"])
@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_ids_of_any_integers_are_taken(engine, dtype):
    kept = np.array([0, 3])
    x, kernel = jnp.ones((2, 8)), jnp.arange(64.0).reshape(8, 8)
    expected, found = (
        sparse_linear(x, kernel, mask=BlockMask(ids, (8, 8), (4, 4)), engine=engine)
        for ids in (jnp.asarray(kept, jnp.int32), kept.astype(dtype))
    )
    np.testing.assert_array_equal(found, expected)


def test_ids_in_a_list_are_refused_with_the_way_out():
    mask = BlockMask([0, 3], (8, 8), (4, 4))
    with pytest.raises(InputError, match="kept of a BlockMask is a list: give an array"):
        sparse_linear(jnp.ones((2, 8)), jnp.ones((8, 8)), mask=mask)


@pytest.mark.parametrize(
    ("restored", "says"),
    [
        ({"kept": 0, "kernel_shape": 0, "block": 0}, "as flax.serialization.from_state_dict(masks"),
        ({"kept": 0, "lists": None}, "as checkpointer.restore(path, masks), if they have the same"),
        ({}, "a mask is a mapping of nothing here"),
        (
            {"up": {"kernel": GRID}},
            "a mask is a tree of masks here, with up: give the mask of",
        ),
    ],
)
def test_a_mask_that_was_restored_as_a_mapping_is_told_how_it_is_restored(restored, says):
    with pytest.raises(InputError) as caught:
        check_mask(restored)
    assert says in str(caught.value)
