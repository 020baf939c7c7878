"""What knows JAX's Mosaic GPU, the way to program a GPU by warpgroups of 128 threads.

That interface changes between minor versions of JAX; when it does, this file, `warpgroup` and
`ampere` are what changes. What is called a thread here is a warpgroup.
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

X, Y = "sparsemlp_x", "sparsemlp_y"
WARPGROUP = "sparsemlp_warpgroup"
CLUSTER = "sparsemlp_cluster"
"""Axes of the grid, of warpgroups and of clusters. An axis of a mesh around a kernel that has the
name of one of its own is read in its place, so none has such a name."""
H200_MULTIPROCESSORS = 132
SHARED_MEMORY_BYTES = 232448
"""What one block of threads may have of a Hopper's shared memory."""
TILE_ROWS = 8
"""Rows of the tiles that arrays are copied in."""
BARRIERS_BYTES = 1024
"""What the barriers of a kernel take of it, at most."""
_ALIGNMENT_BYTES = 1024
_MEMORY_REGISTERS = 40
"""Of a thread that copies."""
_REGISTERS = 65536
"""Of a multiprocessor."""


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


def multiprocessors() -> int:
    """How many programs run at once, one on each: of this process' GPU; of an H200 without one."""
    device = jax.local_devices()[0]
    return device.core_count if device.platform == "gpu" else H200_MULTIPROCESSORS


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


def barriers(n: int, arrivals: int, cluster: int = 1) -> Any:
    """Barriers, each of which opens at so many arrivals, again and again.

    Args:
      n: how many.
      arrivals: of the threads of a program.
      cluster: of so many programs; who arrives at such a barrier does so in all of them.
    """
    if cluster == 1:
        return plgpu.Barrier(num_arrivals=arrivals, num_barriers=n)
    return plgpu.ClusterBarrier(collective_axes=(CLUSTER,), num_arrivals=arrivals, num_barriers=n)


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
    out: Any,
    scratch: dict[str, Any],
    n_warpgroups: int,
    interpret: bool,
    cluster: int = 1,
) -> Any:
    """Runs a kernel once for every point of a grid.

    Args:
      name: what the kernel is called in a profile.
      kernel: takes a reference to global memory for each operand and each result, and `scratch`
        by name. It reads its place in the grid from the axes `X`, `Y` and its thread's number from
        `WARPGROUP`.
      operands: arrays.
      grid: how many clusters of programs there are along `X`, which runs fastest, and `Y`, of
        which a GPU has 65535 at most.
      out: shape and dtype of the result, a `jax.ShapeDtypeStruct`; or a tuple of several.
      scratch: shared memory and barriers.
      n_warpgroups: threads of a program.
      interpret: whether JAX interprets the kernel, on any platform, and looks for races.
      cluster: programs that run at the same time, and reach each other's shared memory.
    """
    together = {"cluster": (cluster,), "cluster_names": (CLUSTER,)} if cluster > 1 else {}
    run = plgpu.kernel(
        kernel,
        out_type=out,
        scratch_types=scratch,
        grid=tuple(reversed(grid)),
        grid_names=(Y, X)[-len(grid) :],
        **together,
        num_threads=n_warpgroups,
        thread_name=WARPGROUP,
        kernel_name=name,
        interpret=plgpu.InterpretGPUParams(detect_races=True) if interpret else None,
    )
    # The integers of a kernel have 32 bits, also where `jax_enable_x64` makes others longer.
    operands = [a.astype(jnp.int32) if a.dtype.kind == "i" else a for a in operands]
    with jax.enable_x64(False):
        result = run(*operands)
    # Under `shard_map` the results differ on the devices that any operand differs on.
    vary = frozenset[str]().union(*(jax.typeof(a).manual_axis_type.varying for a in operands))

    def varying(a: Array) -> Array:
        axes = tuple(vary - jax.typeof(a).manual_axis_type.varying)
        return jax.lax.pcast(a, axes, to="varying") if axes else a

    return jax.tree.map(varying, result)


def place(n_shares: int, cluster: int = 1) -> tuple[Array, Array]:
    """Which tile of rows a program works on, and which share; the shares of a tile run together.

    Both lie on the axis `X`: there may be more tiles than a GPU has programs along another. The
    programs of a cluster have the same share of tiles that follow each other.
    """
    index = jax.lax.axis_index(X)
    tile, share = (f(index, jnp.int32(n_shares)) for f in (jax.lax.div, jax.lax.rem))
    return (tile * cluster + jax.lax.axis_index(CLUSTER) if cluster > 1 else tile), share


def registers(n_compute: int, of_memory: int = _MEMORY_REGISTERS) -> int:
    """What each thread of so many multiplying warpgroups may have beside one that copies.

    A program has what its threads were launched with, the same for each and a multiple of 8. A
    warpgroup that asks for more than the others have given back waits for ever.

    Args:
      n_compute: warpgroups that multiply.
      of_memory: what a thread of the one that copies has.
    """
    launched = _REGISTERS // ((n_compute + 1) * 128) // 8 * 8
    left = launched * (n_compute + 1) - of_memory
    return min(255, left // n_compute) // 8 * 8


def specialise(
    n_compute: int,
    memory: Callable[[], None],
    compute: Callable[[Any], None],
    of_memory: int = _MEMORY_REGISTERS,
) -> None:
    """Runs `memory` on the last thread, and `compute` with its number on each of the others.

    Args:
      n_compute: how many others.
      memory: what copies.
      compute: what multiplies.
      of_memory: as in `registers`.
    """
    thread = jax.lax.axis_index(WARPGROUP)

    @pl.when(thread == n_compute)
    def _memory() -> None:
        if n_compute > 1:
            plgpu.set_max_registers(of_memory, action="decrease")
        memory()

    @pl.when(thread < n_compute)
    def _compute() -> None:
        if n_compute > 1:
            plgpu.set_max_registers(registers(n_compute, of_memory), action="increase")
        compute(thread)
