"""Which layer each kernel is tuned for."""

import dataclasses
import math
from typing import Literal

from pallas_kernels import SparseLayer
from sparsemlp.blocks import Block, divides
from tuning.convolution_problems import SIZE
from tuning.kernel_problems import OF_IMAGES, PAIRS, layer_of


def tuned_layer(
    kernel: str,
    shape: tuple[int, int],
    block: Block,
    ratio: float,
    n_rows: int,
    dtype: str,
    axis: Literal[-2, -1],
) -> SparseLayer | None:
    """The layer that a kernel is tuned for; None if its block does not divide what it has to.

    Args:
      kernel: one of `KERNELS`; of a pair the layer is the first one.
      shape: inputs and outputs; of `OF_IMAGES` channels.
      block: of the mask; of `compact_gradient` that of the activation, of `pruned_input_gradient`
        n and m of its N:M rule.
      ratio: fraction of blocks to drop.
      n_rows: rows of x.
      dtype: of the operands.
      axis: -1 for the features, -2 for the tokens.
    """
    if kernel == "compact_gradient":
        fits = n_rows % block[0] == 0 and shape[0] % block[1] == 0
        layer = layer_of((shape[0], n_rows), block, ratio, axis, dtype) if fits else None
        return layer and dataclasses.replace(layer, kernel_shape=shape)
    if kernel == "pruned_input_gradient":
        fits = block[0] < block[1] and shape[1] % block[1] == 0
        return SparseLayer(shape, block, 1, axis, dtype) if fits else None
    if kernel in PAIRS and (axis != -1 or shape[0] > shape[1]):
        return None
    if kernel in OF_IMAGES:
        fits = axis == -1 and divides(block, shape)
        matrix = math.prod(SIZE) * shape[0], shape[1]
        return layer_of(matrix, block, ratio, axis, dtype) if fits else None
    shapes = [shape, *([(shape[1], shape[0])] if kernel in PAIRS else [])]
    if not all(divides(block, own) for own in shapes):
        return None
    return layer_of(shape, block, ratio, axis, dtype)
