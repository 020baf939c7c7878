"""Kernels of masked convolutions with the operands that they are compiled for without a GPU."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from cases import TRITON, Case, kept_of

from pallas_kernels import SparseLayer
from pallas_kernels.dense_convolution import Geometry

N_IN, N_OUT, SIZE = 128, 256, (3, 3)
IMAGES = (64, 16, 16, N_IN)
CONVOLUTIONS = ("convolution", "convolution_transposed", "convolution_gradient")


def convolution_case(
    kernel: str,
    block: tuple[int, int],
    dtype: Any,
    stride: int = 1,
    precision: str | None = None,
    configuration: Any = None,
) -> Case:
    """One kernel for a convolution of 64 images of 16x16, a fifth of whose blocks is kept."""
    matrix = (math.prod(SIZE) * N_IN, N_OUT)
    n_kept = math.prod(matrix) // math.prod(block) // 5
    layer = SparseLayer(matrix, block, n_kept, -1, jnp.dtype(dtype).name)
    low = 1 if stride == 1 else 0
    geometry = Geometry((stride, stride), ((low, 1), (low, 1)))
    outputs = geometry.outputs((16, 16), SIZE)

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    x, dy, w = array(*IMAGES), array(IMAGES[0], *outputs, N_OUT), array(*SIZE, N_IN, N_OUT)
    kept = kept_of(layer)

    def product(x: Any, w: Any, bias: Any, kept: Any) -> Any:
        return TRITON.convolution(x, w, bias, kept, layer, geometry)

    def transposed(dy: Any, w: Any, kept: Any) -> Any:
        return TRITON.convolution_input_gradient(dy, w, kept, layer, (16, 16), geometry)

    def gradient(x: Any, dy: Any, kept: Any) -> Any:
        return TRITON.convolution_gradients(x, dy, kept, layer, SIZE, geometry)

    call, operands = {
        "convolution": (product, (x, w, array(N_OUT), kept)),
        "convolution_transposed": (transposed, (dy, w, kept)),
        "convolution_gradient": (gradient, (x, dy, kept)),
    }[kernel]
    name = f"sparsemlp_{kernel}"
    return Case("triton", name, block, dtype, -1, call, operands, configuration, precision)
