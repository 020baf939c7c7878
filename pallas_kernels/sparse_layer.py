"""What is known of a block-sparse layer when it is traced, and what an engine is asked for."""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

from pallas_kernels.device_table import Problem

Phase = Literal["product", "input_gradient", "kernel_gradient", "mlp", "straight_through_mlp"]
"""What an engine can be asked to do with a mask: one of the three products, or a fused pair of
layers, of whose kernels' gradients the kept blocks are computed, or all of them."""


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

    @property
    def grid_shape(self) -> tuple[int, int]:
        """Blocks of the kernel, `(in / cols, out / rows)`."""
        (n_in, n_out), (rows, cols) = self.kernel_shape, self.block
        return n_in // cols, n_out // rows

    @property
    def n_kept_weights(self) -> int:
        """How many weights are kept."""
        return self.n_kept * math.prod(self.block)

    @property
    def is_masked(self) -> bool:
        """Whether any block is dropped."""
        return self.n_kept_weights < math.prod(self.kernel_shape)

    def problem(self, engine: str, version: int, kernel: str, n_rows: int) -> Problem:
        """What a kernel is asked to do with this layer.

        Args:
          engine: name of the engine.
          version: of its kernels.
          kernel: the method of the engine; of the pair of layers that `mlp` and
            `mlp_gradients` are for, this is either.
          n_rows: rows of x, or samples times channels along the token axis.
        """
        shape = self.kernel_shape
        if kernel in ("mlp", "mlp_gradients"):
            shape = (min(shape), max(shape))
        return Problem(
            engine=engine,
            version=version,
            kernel=kernel,
            dtype=self.dtype,
            block=self.block,
            kernel_shape=shape,
            axis=self.axis,
            density=self.n_kept_weights / max(1, math.prod(shape)),
            n_rows=n_rows,
        )


class Weights(NamedTuple):
    """The arrays of a layer: kernel `[in, out]`, bias `[out]` or None, kept int32 `[k]` or None.

    The gradients of a layer have the same form, without `kept`.
    """

    kernel: Any
    bias: Any
    kept: Any = None
