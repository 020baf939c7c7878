"""What tensor cores take of a layer."""

import pytest

from pallas_kernels import Mosaic, SparseLayer, Triton
from pallas_kernels.tensor_cores import SIDES, reason_against_blocks, reason_against_platform


@pytest.mark.parametrize(
    ("block", "n_kept", "says"),
    [
        ((16, 128), 1, None),
        ((8, 16), 1, "sides of blocks have to be of 16, 32, 64, 128, not 8x16"),
        ((16, 256), 1, "not 16x256"),
        # All are kept: the product is dense.
        ((8, 16), 256 * 256 // (8 * 16), None),
    ],
)
def test_sides_of_blocks_are_powers_of_two_from_16_to_128_unless_all_are_kept(block, n_kept, says):
    layer = SparseLayer((256, 256), block, n_kept, -1, "float32")
    reason = reason_against_blocks(layer)
    assert reason is None if says is None else says in str(reason)


@pytest.mark.parametrize(
    ("dtype", "platform", "interpret", "says"),
    [
        ("bfloat16", "gpu", False, None),
        ("float32", "cpu", True, None),
        ("float32", "cpu", False, "the platform is 'cpu'; where there is one, pip install"),
        ("float16", "gpu", False, "it computes float32 and bfloat16, not float16"),
    ],
)
def test_platform_and_dtype_are_named_with_the_way_out(dtype, platform, interpret, says):
    layer = SparseLayer((64, 64), (SIDES[0], SIDES[0]), 1, -1, dtype)
    reason = reason_against_platform(layer, platform, interpret=interpret)
    assert reason is None if says is None else says in str(reason)


@pytest.mark.parametrize("engine", [Triton(), Mosaic()], ids=["triton", "mosaic"])
def test_engines_for_gpus_say_it(engine):
    layer = SparseLayer((64, 64), (SIDES[0], SIDES[0]), 1, -1, "float32")
    assert "the platform is 'cpu'" in str(engine.reason_against(layer, "cpu"))
