"""What knows JAX's Mosaic GPU, the way to program a GPU by warpgroups of 128 threads.

That interface changes between minor versions of JAX; when it does, this file and `ampere` are what
changes. What is called a thread here is a warpgroup.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

try:
    from jax.experimental.pallas import mosaic_gpu
except ImportError:
    mosaic_gpu = None

plgpu: Any = mosaic_gpu

WARPGROUP = "warpgroup"
SHARED_MEMORY_BYTES = 232448
"""What one block of threads may have of a Hopper's shared memory."""
TILE_ROWS = 8
"""Rows of the tiles that arrays are copied in."""
BARRIERS_BYTES = 1024
"""What the barriers of a kernel take of it, at most."""
_ALIGNMENT_BYTES = 1024
_MEMORY_REGISTERS = 40
_REGISTERS = 512
"""Registers of one thread if a warpgroup were alone on its multiprocessor."""


def missing(interpret: bool = False) -> str | None:
    """Why the installed JAX cannot compile these kernels, or interpret them; None if it can."""
    if plgpu is None or not hasattr(plgpu, "wgmma"):
        return (
            f"JAX {jax.__version__} does not compile Pallas kernels by Mosaic for GPUs: install "
            "'jax>=0.11.1,<0.13'"
        )
    if interpret and jax.__version_info__ < (0, 11, 2):
        return (
            f"JAX {jax.__version__} compiles these kernels, but does not interpret them: install "
            "'jax>=0.11.2,<0.13', or use a GPU"
        )
    return None


def product_name(*, transposed: bool, with_gelu: bool) -> str:
    """What a product's kernel is called in a profile."""
    if transposed:
        return "sparsemlp_transposed"
    return "sparsemlp_gelu" if with_gelu else "sparsemlp_product"


def panel_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Bytes that an array takes in shared memory."""
    size = jnp.dtype(dtype).itemsize
    for length in shape:
        size *= length
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def shared(shape: tuple[int, ...], dtype: Any, contiguous: int) -> Any:
    """Shared memory for matrices `[..., m, n]` as tensor cores read them.

    Args:
      shape: of all of them.
      dtype: of their entries.
      contiguous: how many entries of a row lie side by side, 32, 64 or 128 bytes that divide it; of
        both operands of a product it is the same.
    """
    transforms = (
        plgpu.TilingTransform((TILE_ROWS, contiguous)),
        plgpu.SwizzleTransform(contiguous * jnp.dtype(dtype).itemsize),
    )
    return plgpu.SMEM(shape, jnp.dtype(dtype), transforms=transforms)


def barriers(n: int, arrivals: int) -> Any:
    """Barriers, each of which opens at so many arrivals, again and again."""
    return plgpu.Barrier(num_arrivals=arrivals, num_barriers=n)


def padded(a: Float[Array, "rows n"], size: int) -> Float[Array, "padded n"]:
    """Rows up to a multiple of `size`, zeros behind.

    Arrays that are copied in tiles have to be cut into whole ones, of 8 rows where features lie
    side by side; the copies of Ampere have to stay inside of their array.
    """
    return jnp.pad(a, ((0, -a.shape[0] % size), (0, 0)))


def launch(
    name: str,
    kernel: Callable[..., None],
    operands: Sequence[Array],
    *,
    grid: tuple[int, ...],
    out: jax.ShapeDtypeStruct,
    scratch: dict[str, Any],
    n_warpgroups: int,
    interpret: bool,
) -> Array:
    """Runs a kernel once for every point of a grid.

    Args:
      name: what the kernel is called in a profile.
      kernel: takes a reference to global memory for each operand and for the result, and `scratch`
        by name. It reads its place in the grid from the axes `x`, `y` and its thread's number from
        `WARPGROUP`.
      operands: arrays.
      grid: how many programs there are along `x`, which runs fastest, and `y`, of which a GPU has
        65535 at most.
      out: shape and dtype of the result.
      scratch: shared memory and barriers.
      n_warpgroups: threads of a program.
      interpret: whether JAX interprets the kernel, on any platform, and looks for races.
    """
    run = plgpu.kernel(
        kernel,
        out_type=out,
        scratch_types=scratch,
        grid=tuple(reversed(grid)),
        grid_names=("y", "x")[-len(grid) :],
        num_threads=n_warpgroups,
        thread_name=WARPGROUP,
        kernel_name=name,
        interpret=plgpu.InterpretGPUParams(detect_races=True) if interpret else None,
    )
    # The integers of a kernel have 32 bits, also where `jax_enable_x64` makes others longer.
    operands = [a.astype(jnp.int32) if a.dtype.kind == "i" else a for a in operands]
    with jax.enable_x64(False):
        result = run(*operands)
    # Under `shard_map` the result differs on the devices that any operand differs on.
    vary = frozenset[str]().union(*(jax.typeof(a).manual_axis_type.varying for a in operands))
    axes = tuple(vary - jax.typeof(result).manual_axis_type.varying)
    return jax.lax.pcast(result, axes, to="varying") if axes else result


def place(n_shares: int) -> tuple[Array, Array]:
    """Which tile of rows a program works on, and which share; the shares of a tile run together.

    Both lie on the axis `x`: there may be more tiles than a GPU has programs along another.
    """
    index = jax.lax.axis_index("x")
    return jax.lax.div(index, jnp.int32(n_shares)), jax.lax.rem(index, jnp.int32(n_shares))


def specialise(n_compute: int, memory: Callable[[], None], compute: Callable[[Any], None]) -> None:
    """Runs `memory` on the last thread, and `compute` with its number on each of the others."""
    thread = jax.lax.axis_index(WARPGROUP)

    @pl.when(thread == n_compute)
    def _memory() -> None:
        if n_compute > 1:
            plgpu.set_max_registers(_MEMORY_REGISTERS, action="decrease")
        memory()

    @pl.when(thread < n_compute)
    def _compute() -> None:
        if n_compute > 1:
            most = min(255, (_REGISTERS - _MEMORY_REGISTERS) // n_compute)
            plgpu.set_max_registers(most // 8 * 8, action="increase")
        compute(thread)


def with_accumulators(shape: tuple[int, int], n: int, use: Callable[..., Any]) -> Any:
    """Calls `use` with n sums in the registers of this thread, float32 zeros."""
    return pl.run_scoped(use, *(plgpu.ACC(shape, jnp.float32) for _ in range(n)))


def fetch(source: Any, destination: Any, barrier: Any) -> None:
    """Starts a copy from global to shared memory that arrives at a barrier when it is done.

    What lies outside of the source becomes zero.
    """
    plgpu.copy_gmem_to_smem(source, destination, barrier, oob_mode=plgpu.OOBFillMode.ZEROS)


def arrive(barrier: Any) -> None:
    """Arrives at a barrier."""
    plgpu.barrier_arrive(barrier)


def wait(barrier: Any) -> None:
    """Waits until a barrier opens; a thread that waits for one waits for each of its openings."""
    plgpu.barrier_wait(barrier)


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


def load_row(ref: Any, n_rows: int) -> Array:
    """A vector in global memory `[n]`, repeated as the rows of a sum `[n_rows, n]`, in float32."""
    row = plgpu.load(ref, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
    row = row.astype(jnp.float32)
    return jax.lax.broadcast_in_dim(row, (n_rows, row.shape[0]), (1,))


def write(value: Array, staging: Any, destination: Any) -> None:
    """Copies a value through shared memory to global memory, except what lies outside of that."""
    # The copy before this one may still read the staging memory.
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    staging[...] = value.astype(staging.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(staging, destination)


def finish_writes() -> None:
    """Waits until the staging memory of this thread is no longer read: a program ends with it."""
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
