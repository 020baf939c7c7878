"""What a warpgroup of 128 threads can do on a GPU: copies, barriers, products of tensor cores.

Of JAX's Mosaic GPU, whose interface changes between minor versions of JAX, what stands inside of a
kernel; `launch` has what stands around it. A warpgroup is called a thread here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from pallas_kernels.mosaic.launch import CLUSTER, plgpu


def with_accumulators(shape: tuple[int, int], n: int, use: Callable[..., Any]) -> Any:
    """Calls `use` with n sums in the registers of this thread, float32 zeros."""
    return pl.run_scoped(use, *(plgpu.ACC(shape, jnp.float32) for _ in range(n)))


def fetch(source: Any, destination: Any, barrier: Any, *, together: bool = False) -> None:
    """Starts a copy from global to shared memory that arrives at a barrier when it is done.

    What lies outside of the source becomes zero.

    Args:
      source: in global memory.
      destination: in shared memory.
      barrier: where it arrives.
      together: whether all programs of the cluster start this copy: each then loads a part of the
        source for all of them, and each one's barrier hears of all parts.
    """
    plgpu.copy_gmem_to_smem(
        source,
        destination,
        barrier,
        oob_mode=plgpu.OOBFillMode.ZEROS,
        collective_axes=CLUSTER if together else None,
    )


def arrive(barrier: Any) -> None:
    """Arrives at a barrier."""
    plgpu.barrier_arrive(barrier)


def wait(barrier: Any) -> None:
    """Waits until a barrier opens; a thread that waits for one waits for each of its openings."""
    plgpu.barrier_wait(barrier)


def meet() -> None:
    """Waits until all warps of this thread are here: each leaves a barrier by itself.

    At a barrier of one program every warp arrives, at one of a cluster the first for all. What they
    have stored before is there for tensor cores then.
    """
    plgpu.commit_smem()


def start_product(total: Any, a: Any, b: Any) -> None:
    """Starts `total += a b` on tensor cores: a `[64, k]` and b `[k, n]` in shared memory.

    Float32 is multiplied in TF32.
    """
    plgpu.wgmma(total, a, b)


def finish_products(n_left: int) -> None:
    """Waits until at most the last `n_left` of this thread's products still run."""
    plgpu.wgmma_wait(n_left)


def turned(ref: Any) -> Any:
    """The transpose of a matrix in shared memory, which does not move."""
    return ref.transpose((1, 0)) if hasattr(ref, "transpose") else plgpu.transpose_ref(ref, (1, 0))


def read(ref: Any, index: Any) -> Array:
    """A number in global memory.

    Under `shard_map` it is typed by the devices that it differs on, which no result in a kernel is,
    and a loop takes only one of both; the sum is a result.
    """
    value = ref[index]
    return value + jnp.zeros((), value.dtype)


class Table(NamedTuple):
    """Numbers in global memory: one of several rows of them, each of another layer.

    Attributes:
      ref: `[n_alike, n]`.
      which: row.
    """

    ref: Any
    which: Array

    @property
    def size(self) -> int:
        """How many numbers."""
        return self.ref.shape[1]

    def read(self, index: Array) -> Array:
        """The number of an index."""
        return read(self.ref, (self.which, index))


def load_row(ref: Any) -> Array:
    """A vector in global memory `[n]`, as a row of sums lies in registers."""
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)


def as_rows(row: Array, n_rows: int) -> Array:
    """What `load_row` has loaded, repeated as the rows of a sum `[n_rows, n]`, in float32."""
    row = row.astype(jnp.float32)
    return jax.lax.broadcast_in_dim(row, (n_rows, row.shape[0]), (1,))


def load_sums(ref: Any) -> Array:
    """Numbers in shared memory `[64, n]`, as sums lie in registers, in float32."""
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA).astype(jnp.float32)


def store(value: Array, destination: Any) -> None:
    """Rounds sums to shared memory; tensor cores read them there after `meet`."""
    destination[...] = value.astype(destination.dtype)


def put(value: Array, destination: Any) -> None:
    """Copies sums `[64, n]` from registers to global memory, all of them inside of it."""
    destination[...] = value.astype(destination.dtype)


def write(value: Array, staging: Any, destination: Any, n_others: int = 0) -> None:
    """Copies a value through shared memory to global memory, except what lies outside of that.

    Args:
      value: the value.
      staging: in shared memory.
      destination: in global memory.
      n_others: how many values this thread has written, since the last one that took this staging
        memory, from others.
    """
    # The last copy from this staging memory may still read it; copies end in their order.
    plgpu.wait_smem_to_gmem(n_others, wait_read_only=True)
    staging[...] = value.astype(staging.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(staging, destination)


def write_blocks(
    value: Array, staging: Any, destination: Any, first_row: Array, height: int, n_blocks: Array
) -> None:
    """Copies the first blocks of a value, which lie above each other, to global memory.

    Args:
      value: `[64, n]`.
      staging: in shared memory, not in use.
      destination: in global memory, `[rows, n]`.
      first_row: where the first block goes, the others below it.
      height: of a block; at least 64 is one block.
      n_blocks: how many of them are written.
    """
    rows = value.shape[0]
    height = min(height, rows)
    staging[...] = value.astype(staging.dtype)
    plgpu.commit_smem()
    for block in range(rows // height):

        @pl.when(block < n_blocks)
        def _write(block: int = block) -> None:
            plgpu.copy_smem_to_gmem(
                staging.at[pl.ds(block * height, height)],
                destination.at[pl.ds(first_row + block * height, height)],
            )


def finish_writes() -> None:
    """Waits until the staging memory of this thread is no longer read: a program ends with it."""
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
