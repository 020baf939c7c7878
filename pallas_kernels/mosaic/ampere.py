"""What Ampere has for kernels of one warpgroup: `cp.async`, `ldmatrix` and `mma.sync`.

With `launch` the place that knows JAX's Mosaic GPU. The interpreter has none of these instructions:
interpreted, a copy is an assignment, which is done at once, and a product is `jnp.dot`. So tests
see every index, and no wait that is missing; each is argued where it stands.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.launch import plgpu

ROWS = 64
"""Rows of the smallest product of a warpgroup, 16 of each warp."""
LEAST_ENTRIES = 512
"""Of a block of weights: a warpgroup copies no fewer at once."""
_SHARED_MEMORY_BYTES = {"8.0": 166_912, "8.7": 166_912}
_LEAST_SHARED_MEMORY_BYTES = 101_376


def shared_memory_bytes(capability: str) -> int:
    """What one block of threads may have of the shared memory of a GPU.

    Args:
      capability: `major.minor`: 8.0 is A30 and A100; 8.6 and 8.9 have less.
    """
    return _SHARED_MEMORY_BYTES.get(capability, _LEAST_SHARED_MEMORY_BYTES)


@dataclasses.dataclass(frozen=True)
class Instructions:
    """The instructions, or what the interpreter takes in their place.

    Attributes:
      interpret: whether the kernel is interpreted.
    """

    interpret: bool

    def fetch(self, source: Any, destination: Any) -> None:
        """Starts a copy from global to shared memory, one more group of copies.

        Args:
          source: `[m, n]`, all of it inside of its array.
          destination: `[m, n]`; no thread may still be about to read it.
        """
        if self.interpret:
            destination[...] = source[...]
        else:
            plgpu.copy_gmem_to_smem(
                source, destination, oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS
            )

    def wait(self, n_left: int) -> None:
        """Waits until at most the last `n_left` copies run, then for the other threads.

        Behind it the older copies of all threads are there, and all threads are done with what
        they read before it.
        """
        if not self.interpret:
            plgpu.wait_gmem_to_smem(n_left)

    def zeros(self, shape: tuple[int, int], dtype: Any) -> Array:
        """Sums of products of a dtype, float32, in registers."""
        value = jnp.zeros(shape, jnp.float32)
        if self.interpret:
            return value
        return plgpu.layout_cast(value, plgpu.Layout.MMA_ACC(jnp.dtype(dtype)))

    def load(self, ref: Any, side: Literal["left", "right"]) -> Array:
        """An operand of a product, out of shared memory into registers."""
        if self.interpret:
            return ref[...]
        layouts = {"left": plgpu.Layout.MMA_LHS, "right": plgpu.Layout.MMA_RHS}
        return plgpu.load(ref, layout=layouts[side](jnp.dtype(ref.dtype)), optimized=False)

    def add_product(
        self, total: Float[Array, "m n"], a: Float[Array, "m k"], b: Float[Array, "k n"]
    ) -> Float[Array, "m n"]:
        """`total + a b`, done when it returns."""
        if self.interpret:
            return total + jnp.dot(a, b, preferred_element_type=jnp.float32)
        return plgpu.mma(total, a, b)

    def add_row(self, total: Float[Array, "m n"], ref: Any, dtype: Any) -> Float[Array, "m n"]:
        """Sums with a vector in global memory `[n]` on each of their rows."""
        if self.interpret:
            row = ref[...]
        else:
            layout = plgpu.Layout.MMA_ACC(jnp.dtype(dtype)).reduce(0)
            row = plgpu.load(ref, layout=layout, optimized=False)
        return total + jax.lax.broadcast_in_dim(row.astype(jnp.float32), total.shape, (1,))

    def write(self, value: Float[Array, "m n"], staging: Any, destination: Any) -> None:
        """Writes sums to global memory, through shared memory so that lines are written whole.

        Args:
          value: `[m, n]`, float32.
          staging: `[m, n]` of the dtype of the result.
          destination: `[m, n]`.
        """
        # Stores to shared memory have a barrier before and behind them: no thread still reads the
        # sums before these, and all see these.
        staging[...] = value.astype(staging.dtype)
        if self.interpret:
            destination[...] = staging[...]
            return
        dtype = jnp.dtype(staging.dtype)
        swizzle = side_by_side(*value.shape) * dtype.itemsize
        layout = plgpu.Layout.SMEM_GMEM_COPY(value.shape, dtype, swizzle)
        _store(plgpu.load(staging, layout=layout, optimized=False), destination)

    def write_sums(self, value: Float[Array, "m n"], destination: Any) -> None:
        """Writes sums to global memory as float32, from the registers that have them."""
        if self.interpret:
            destination[...] = value
        else:
            _store(value, destination)


def _store(value: Array, destination: Any) -> None:
    if hasattr(plgpu, "store"):
        # It would refuse lines that are not of 128 bytes: blocks of 16 or 32 columns have none.
        plgpu.store(destination, value, optimized=False)
    else:
        destination[...] = value


def side_by_side(rows: int, n: int) -> int:
    """How many 16-bit entries of a row lie side by side in shared memory: at most 128 bytes.

    Four warps copy tiles of 8 rows of them: of a matrix of 16 rows they take two tiles across.

    Args:
      rows: of the matrix that is copied together.
      n: its columns.
    """
    return min(64, n if rows % 32 == 0 else n // 2)


def shared(*shape: int, dtype: Any, n_whole: int | None = None) -> Any:
    """Shared memory for matrices `[..., m, n]` of a 16-bit dtype, of which products are taken.

    Args:
      shape: of all of them.
      dtype: of their entries.
      n_whole: columns that are copied together, if they are not all of them.
    """
    return launch.shared(shape, dtype, side_by_side(shape[-2], n_whole or shape[-1]))
