"""`dW = (x^T dy) * M` on Ampere, in bfloat16: only the kept blocks are computed.

A program of one warpgroup owns one kept block, or a few of one block column, and a share of the
rows, which stream through a ring of buffers. The shares are summed in a fixed order, so results are
the same in every run.

A warpgroup multiplies 64 rows of the result at least. A side of the block that has them becomes its
rows; else kept blocks of one column are put together until there are 64. Tensor cores read both
operands across their rows, which `ldmatrix` turns on the way: nothing is transposed in memory.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.lists import KeptBlocks, listed
from pallas_kernels.mosaic import launch, warpgroup
from pallas_kernels.mosaic.ampere import ROWS, Instructions, shared
from pallas_kernels.mosaic.groups import group, spread_parts
from pallas_kernels.sparse_layer import SparseLayer

DEPTH = 64
"""Rows of x and dy in one buffer: not tuned yet."""
STAGES = 3
"""Buffers of the ring: not tuned yet."""
PROGRAMS = 432
"""How many programs a product is cut into at least, if it has the rows: not tuned yet."""


@functools.partial(jax.jit, static_argnames=("layer", "interpret"))
def kernel_gradient(
    x: Float[Array, "rows in"],
    dy: Float[Array, "rows out"],
    kept: KeptBlocks,
    layer: SparseLayer,
    *,
    interpret: bool,
) -> Float[Array, "in out"]:
    """`dW`, exactly zero in dropped blocks.

    Args:
      x: `[rows, in]`.
      dy: `[rows, out]`.
      kept: the kept blocks.
      layer: the layer, bfloat16, without regard to its axis.
      interpret: whether the kernel is interpreted.
    """
    rows, cols = layer.block
    # The left operand is x, and the sums are blocks as they lie in dW, or both are turned.
    is_swapped = cols < ROWS <= rows
    height, width = (rows, cols) if is_swapped else (cols, rows)
    n_together = max(1, ROWS // height)
    tall = height * n_together
    grid_shape = layer.grid_shape
    blocks = listed(kept, grid_shape)
    of_all = group(blocks, grid_shape, n_together, by_rows=is_swapped)
    groups = blocks.own(of_all)
    n_groups = groups.line.size
    x, dy = launch.padded(x, DEPTH), launch.padded(dy, DEPTH)
    n_steps = x.shape[0] // DEPTH
    per_share = pl.cdiv(n_steps, min(n_steps, pl.cdiv(PROGRAMS, n_groups)))
    n_shares = pl.cdiv(n_steps, per_share)
    parts = launch.launch(
        "sparsemlp_gradient",
        functools.partial(
            _kernel,
            height=height,
            n_steps=n_steps,
            per_share=per_share,
            do=Instructions(interpret),
        ),
        [groups.line, groups.length, groups.across, *((dy, x) if is_swapped else (x, dy))],
        grid=(n_groups, n_shares),
        out=jax.ShapeDtypeStruct((n_shares * n_groups * tall, width), jnp.float32),
        scratch={
            "left": shared(STAGES, DEPTH, tall, dtype=x.dtype, n_whole=height),
            "right": shared(STAGES, DEPTH, width, dtype=x.dtype),
        },
        n_warpgroups=1,
        interpret=interpret,
    )
    parts = parts.reshape(n_shares, -1, height, width)
    return spread_parts(parts, of_all, blocks, layer, is_swapped=is_swapped)


def _kernel(
    line: Any,
    length: Any,
    across: Any,
    a: Any,
    b: Any,
    dw: Any,
    *,
    height: int,
    n_steps: int,
    per_share: int,
    do: Instructions,
    left: Any,
    right: Any,
) -> None:
    n_groups = line.shape[0]
    tall, width = left.shape[2], right.shape[2]
    n_together = tall // height
    share, index = jax.lax.axis_index(launch.Y), jax.lax.axis_index(launch.X)
    mine = warpgroup.read(line, index)
    first = share * per_share
    is_there = warpgroup.read(length, index) > 0
    last = jnp.where(is_there, jnp.minimum(first + per_share, n_steps), first)

    def fetch(step: Array) -> None:
        @pl.when(step < last)
        def _fetch() -> None:
            slot = jax.lax.rem(step - first, jnp.int32(STAGES))
            rows = pl.ds(step * DEPTH, DEPTH)
            for i in range(n_together):
                block = warpgroup.read(across, index * n_together + i)
                to = left.at[slot]
                if n_together > 1:
                    to = left.at[slot, :, pl.ds(i * height, height)]
                do.fetch(a.at[rows, pl.ds(block * height, height)], to)
            do.fetch(b.at[rows, pl.ds(mine * width, width)], right.at[slot])

    def add(step: Array, total: Array) -> Array:
        # So far this step and the STAGES - 2 behind it were fetched: it is there once no more than
        # those are on their way. Near the end there are fewer behind it: wait for all.
        is_more = step + STAGES - 1 < last

        @pl.when(is_more)
        def _wait() -> None:
            do.wait((STAGES - 2) * (n_together + 1))

        @pl.when(~is_more)
        def _wait_for_all() -> None:
            do.wait(0)

        # All threads have waited, so all have read the buffers of the step before this one, which
        # are the next to be filled.
        fetch(step + STAGES - 1)
        slot = jax.lax.rem(step - first, jnp.int32(STAGES))
        turned = do.load(warpgroup.turned(left.at[slot]), "left")
        return do.add_product(total, turned, do.load(right.at[slot], "right"))

    for step in range(STAGES - 1):
        fetch(first + step)
    total = jax.lax.fori_loop(first, last, add, do.zeros((tall, width), a.dtype))
    do.write_sums(total, dw.at[pl.ds((share * n_groups + index) * tall, tall)])
