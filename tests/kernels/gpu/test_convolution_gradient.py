"""Gradients of masked convolutions' kernels whose rows of pixels are shared among programs."""

import jax
import numpy as np
import pytest
from test_convolution_products import EPS, IMAGES, KEPT, LAYER, SIZE, WALKS, operands

from pallas_kernels import ENGINES
from pallas_kernels.layout import dense_mask
from pallas_kernels.triton.configurations import GradientTiles
from pallas_kernels.tuning import forced


@pytest.mark.parametrize("stride", WALKS)
@pytest.mark.parametrize("programs", [1, 24, 10_000])
def test_shares_of_rows_add_up_to_the_whole(stride, programs):
    x, _, _, dy = operands(stride)

    @jax.jit
    def call(x, dy):
        with forced(GradientTiles(16, warps=4, stages=3, programs=programs)):
            return ENGINES["triton"].convolution_gradients(x, dy, KEPT, LAYER, SIZE, WALKS[stride])

    dw, db = (np.asarray(a) for a in call(x, dy))
    expected = ENGINES["reference"].convolution_gradients(x, dy, KEPT, LAYER, SIZE, WALKS[stride])
    mask = np.asarray(dense_mask(KEPT, LAYER.kernel_shape, LAYER.block)).reshape(dw.shape)
    np.testing.assert_array_equal(dw[~mask], 0)
    n_terms = IMAGES[0] * dy.shape[1] * dy.shape[2]
    np.testing.assert_allclose(dw, expected[0], rtol=0, atol=16 * EPS * np.sqrt(n_terms) * 4)
    np.testing.assert_array_equal(db, expected[1])
