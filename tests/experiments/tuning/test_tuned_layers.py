"""The layer that each kernel is tuned for."""

import pytest
from tuning.kernel_problems import PAIRS, PRODUCTS
from tuning.tuned_layers import tuned_layer

REST = 0.8, 256, "bfloat16"


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("kernel", PRODUCTS)
def test_products_are_of_the_layer_itself_if_the_block_divides_it(kernel, axis):
    layer = tuned_layer(kernel, (128, 64), (32, 16), *REST, axis)
    assert layer is not None
    assert (layer.kernel_shape, layer.block, layer.axis) == ((128, 64), (32, 16), axis)
    assert layer.n_kept == 4
    assert tuned_layer(kernel, (128, 64), (48, 16), *REST, axis) is None


@pytest.mark.parametrize("kernel", PAIRS)
def test_pairs_widen_first_and_have_features_side_by_side(kernel):
    assert tuned_layer(kernel, (64, 128), (32, 16), *REST, -1) is not None
    assert tuned_layer(kernel, (128, 64), (32, 16), *REST, -1) is None
    assert tuned_layer(kernel, (64, 128), (32, 16), *REST, -2) is None
    # The block has to divide the layer back too.
    assert tuned_layer(kernel, (32, 64), (64, 32), *REST, -1) is None


def test_the_block_of_an_activation_divides_rows_and_features():
    layer = tuned_layer("compact_gradient", (128, 64), (16, 32), *REST, -1)
    assert layer is not None
    assert layer.kernel_shape == (128, 64)
    assert layer.n_kept == 13  # Of 16 times 4 blocks of x.
    assert tuned_layer("compact_gradient", (48, 64), (16, 32), *REST, -1) is None


def test_neighbours_divide_the_outputs():
    layer = tuned_layer("pruned_input_gradient", (128, 64), (2, 4), *REST, -1)
    assert layer is not None
    assert layer.block == (2, 4)
    assert tuned_layer("pruned_input_gradient", (128, 62), (2, 4), *REST, -1) is None
    assert tuned_layer("pruned_input_gradient", (128, 64), (4, 2), *REST, -1) is None
