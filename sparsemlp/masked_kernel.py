"""A masked kernel: its kept blocks, and who computes each product with them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from pallas_kernels import Engine, Phase, SparseLayer, layout
from sparsemlp.engines import choose_for_grid
from sparsemlp.masks import GridMask, KeptByProduct, Mask
from sparsemlp.rules import Backward


class Engines(NamedTuple):
    """Who computes the three products of a layer."""

    product: Engine
    input_gradient: Engine
    kernel_gradient: Engine


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("kept",),
    meta_fields=("matrix", "engines", "backward"),
)
@dataclasses.dataclass(frozen=True, eq=False)
class MaskedKernel:
    """A masked kernel: its kept blocks, and who computes each product with them, a pytree.

    Attributes:
      kept: the kept blocks, for each product as its engine takes them.
      matrix: what is static about the kernel as a matrix, and its blocks.
      engines: who computes the products.
      backward: what the backward pass does with the mask.
    """

    kept: KeptByProduct
    matrix: SparseLayer
    engines: Engines
    backward: Backward

    def zero_dropped(self, gradient: Array) -> Array:
        """The gradient of a whole kernel with zeros in dropped blocks."""
        matrix = self.matrix
        mask = layout.dense_mask(self.kept.kernel_gradient, matrix.kernel_shape, matrix.block)
        return jnp.where(mask.reshape(gradient.shape), gradient, 0)


def masked_kernel(
    mask: Mask | None,
    axis: Literal[-1, -2],
    dtype: str,
    backward: Backward,
    engine: str,
    choose: Callable[[str, SparseLayer, Phase], Engine],
) -> MaskedKernel | None:
    """The kernel that a mask is for; None if no block of it is dropped.

    Args:
      mask: the mask.
      axis: the axis of x that is contracted.
      dtype: of the operands.
      backward: what the backward pass does with the mask, where the mask does not say it.
      engine: `auto`, or the name of an engine.
      choose: of that name the engine for a product of the layer.

    Raises:
      InputError: the engine does not exist, or cannot compute this here.
    """
    if mask is None or mask.keeps_all:
        return None
    matrix = mask.sparse_layer(axis, dtype)
    if isinstance(mask, GridMask):
        engines = Engines(*(choose_for_grid(engine),) * 3)
    else:
        engines = Engines(
            choose(engine, matrix, "product"),
            choose(engine, matrix, "input_gradient"),
            choose(engine, matrix, "kernel_gradient"),
        )
    by_engine = zip(engines, mask.by_product, strict=True)
    kept = KeptByProduct(*(own.taken(blocks) for own, blocks in by_engine))
    return MaskedKernel(kept, matrix, engines, "masked" if mask.says_backward else backward)
