"""What an engine is told of a layer becomes a problem that tables of measurements know."""

import pytest

from pallas_kernels import SparseLayer

EXPANDING = SparseLayer((64, 256), (32, 16), 8, -1, "bfloat16")
CONTRACTING = SparseLayer((256, 64), (32, 16), 8, -1, "bfloat16")


def test_a_problem_states_the_layer_and_the_share_of_its_weights_that_is_kept():
    found = EXPANDING.problem("triton", 3, "input_gradient", 8192)
    assert (found.engine, found.version, found.kernel) == ("triton", 3, "input_gradient")
    assert (found.dtype, found.block, found.axis) == ("bfloat16", (32, 16), -1)
    assert (found.kernel_shape, found.n_rows) == ((64, 256), 8192)
    assert found.density == pytest.approx(8 * 32 * 16 / (64 * 256))


def test_both_layers_of_a_pair_are_the_same_problem():
    pair = [layer.problem("triton", 3, "mlp", 8192) for layer in (EXPANDING, CONTRACTING)]
    assert pair[0] == pair[1]
    assert pair[0].kernel_shape == (64, 256)
    alone = [layer.problem("triton", 3, "product", 8192) for layer in (EXPANDING, CONTRACTING)]
    assert alone[0] != alone[1]


def test_an_empty_kernel_has_no_density():
    assert (
        SparseLayer((0, 8), (4, 4), 0, -1, "float32").problem("cpu", 1, "product", 8).density == 0
    )
