"""What an engine is: the three products of a block-sparse linear layer.

The reference engine defines the meaning of the others; every engine is held to it by one
conformance test.
"""

import abc
import dataclasses
from typing import Literal

from jaxtyping import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class SparseLayer:
    """What is known of a block-sparse linear layer when it is traced.

    Attributes:
      kernel_shape: `(in, out)`.
      block: `(rows, cols)`, rows over outputs; a tile of the kernel is `(cols, rows)`.
      n_kept: how many blocks are kept.
      axis: the axis of x that is contracted, -1 features or -2 tokens.
      dtype: of x, kernel and results; sums are taken in float32 at least.
    """

    kernel_shape: tuple[int, int]
    block: tuple[int, int]
    n_kept: int
    axis: Literal[-1, -2]
    dtype: str


class Engine(abc.ABC):
    """Computes the products of a layer from the kept blocks.

    `kept` is int32 `[k]`: flat ids of the kept blocks, ascending, row-major over the block grid
    `[in / cols, out / rows]`. With `axis = -1`, x is `[..., in]` and y `[..., out]`; with
    `axis = -2`, x is `[..., in, channels]` and y `[..., out, channels]`.
    """

    name: str

    @abc.abstractmethod
    def reason_against(self, layer: SparseLayer, platform: str) -> str | None:
        """Why this engine cannot compute `layer` on `platform`, and the way out; None if it can.

        Args:
          layer: the layer.
          platform: JAX's name of the backend: `cpu`, `gpu`, `tpu`.
        """

    @abc.abstractmethod
    def product(
        self,
        x: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        bias: Float[Array, " out"] | None,
        kept: Int[Array, " k"],
        layer: SparseLayer,
    ) -> Float[Array, "..."]:
        """`y = x (W * M) + b`."""

    @abc.abstractmethod
    def input_gradient(
        self,
        dy: Float[Array, "..."],
        kernel: Float[Array, "in out"],
        kept: Int[Array, " k"],
        layer: SparseLayer,
    ) -> Float[Array, "..."]:
        """`dx = dy (W * M)^T`."""

    @abc.abstractmethod
    def kernel_gradient(
        self,
        x: Float[Array, "..."],
        dy: Float[Array, "..."],
        kept: Int[Array, " k"],
        layer: SparseLayer,
    ) -> Float[Array, "in out"]:
        """`dW = (x^T dy) * M`, exactly zero in dropped blocks."""
