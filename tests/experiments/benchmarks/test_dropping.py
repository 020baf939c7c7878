"""What is timed as masked drops something."""

import jax
import jax.numpy as jnp
import pytest
from benchmarks.dropping import check_drops

from sparsemlp import BlockMasking, InputError

PARAMS = {
    name: {"kernel": jax.ShapeDtypeStruct((8, width), jnp.float32)}
    for name, width in (("a", 8), ("b", 16))
}


def test_a_ratio_that_keeps_every_block_of_all_layers_is_refused():
    message = r"--ratio=0\.1 drops none of the blocks of any layer, 8 at most"
    with pytest.raises(InputError, match=message):
        check_drops(PARAMS, {"*/kernel": BlockMasking((4, 4), 0.1)})


def test_one_dropped_block_is_enough_and_no_mask_is_fine():
    check_drops(PARAMS, {"*/kernel": BlockMasking((4, 4), 0.125)})
    check_drops(PARAMS, {"a/kernel": BlockMasking((4, 4), 0.25)})
    check_drops(PARAMS, {})
