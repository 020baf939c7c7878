"""`dW = (x^T dy) * M`: a product of two dense operands of which only the kept blocks are computed.

A program owns one kept block, or a few of one block column, and a share of the rows. One warpgroup
streams the operands through a ring of buffers, the others multiply. The shares are summed in a
fixed order, so results are the same in every run.

The hardware multiplies 64 rows of the result at least. A side of the block that has them becomes
its rows; else kept blocks of one column are put together until there are 64, each from another
part of x, which XLA transposes for that. Tensor cores read float32 along the rows of x and dy
alone: there XLA transposes both.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.groups import group, spread_parts
from pallas_kernels.sparse_layer import SparseLayer

ROWS = 64
"""Rows of a warpgroup's products, which the hardware sets."""
DEPTH_BYTES = 128
"""Of one feature of x or dy in one buffer: not tuned yet."""
STAGES = 4
"""Buffers of the ring: not tuned yet."""
PROGRAMS = 528
"""How many programs a product is cut into at least, if it has the rows: not tuned yet."""


@functools.partial(jax.jit, static_argnames=("layer", "interpret"))
def kernel_gradient(
    x: Float[Array, "rows in"],
    dy: Float[Array, "rows out"],
    kept: Int[Array, " k"],
    layer: SparseLayer,
    *,
    interpret: bool,
) -> Float[Array, "in out"]:
    """`dW`, exactly zero in dropped blocks.

    Args:
      x: `[rows, in]`.
      dy: `[rows, out]`.
      kept: ids of the kept blocks.
      layer: the layer, without regard to its axis.
      interpret: whether the kernel is interpreted.
    """
    (n_in, n_out), (rows, cols) = layer.kernel_shape, layer.block
    is_wide = jnp.dtype(layer.dtype).itemsize == 4
    # The left operand is x, and the sums are blocks as they lie in dW, or both are turned.
    is_swapped = cols < ROWS <= rows
    height, width = (rows, cols) if is_swapped else (cols, rows)
    n_together = max(1, ROWS // height)
    groups = group(kept, (n_in // cols, n_out // rows), n_together)
    n_groups = groups.column.size
    a_along_rows, b_along_rows = is_wide or n_together > 1, is_wide
    a, b = (dy, x) if is_swapped else (x, dy)
    n_rows = x.shape[0]
    depth = DEPTH_BYTES // x.dtype.itemsize
    n_steps = pl.cdiv(n_rows, depth)
    per_share = pl.cdiv(n_steps, min(n_steps, pl.cdiv(PROGRAMS, n_groups)))
    n_shares = pl.cdiv(n_steps, per_share)
    contiguous = depth if is_wide else min(depth, width)
    tall = height * n_together
    n_compute = tall // ROWS

    def ring(features: int, along_rows: bool) -> Any:
        shape = (features, depth) if along_rows else (depth, features)
        return launch.shared((STAGES, *shape), layer.dtype, contiguous)

    parts = launch.launch(
        "sparsemlp_gradient",
        functools.partial(
            _kernel,
            height=height,
            width=width,
            depth=depth,
            n_together=n_together,
            n_steps=n_steps,
            per_share=per_share,
            is_swapped=is_swapped,
            a_along_rows=a_along_rows,
            b_along_rows=b_along_rows,
        ),
        [
            groups.column,
            groups.row,
            launch.padded(a, depth).T if a_along_rows else launch.padded(a, launch.TILE_ROWS),
            launch.padded(b, depth).T if b_along_rows else launch.padded(b, launch.TILE_ROWS),
        ],
        grid=(n_groups, n_shares),
        out=jax.ShapeDtypeStruct((n_shares * n_groups * tall, width), jnp.float32),
        scratch={
            "a_ring": ring(tall, a_along_rows),
            "b_ring": ring(width, b_along_rows),
            "staging": launch.shared((n_compute, ROWS, width), jnp.float32, min(32, width)),
            "full": launch.barriers(STAGES, arrivals=n_together + 1),
            "free": launch.barriers(STAGES, arrivals=n_compute),
        },
        n_warpgroups=n_compute + 1,
        interpret=interpret,
    )
    parts = parts.reshape(n_shares, -1, height, width)
    return spread_parts(parts, groups, kept, layer, is_swapped=is_swapped)


def _kernel(
    column: Any,
    row: Any,
    a: Any,
    b: Any,
    dw: Any,
    *,
    height: int,
    width: int,
    depth: int,
    n_together: int,
    n_steps: int,
    per_share: int,
    is_swapped: bool,
    a_along_rows: bool,
    b_along_rows: bool,
    a_ring: Any,
    b_ring: Any,
    staging: Any,
    full: Any,
    free: Any,
) -> None:
    n_groups = column.shape[0]
    n_compute = staging.shape[0]
    share, index = jax.lax.axis_index("y"), jax.lax.axis_index("x")
    mine = launch.read(column, index)
    first = share * per_share
    last = jnp.where(mine >= 0, jnp.minimum(first + per_share, n_steps), first)

    def part(ref: Any, step: Array, feature: Array, features: int, along_rows: bool) -> Any:
        rows, features_ = pl.ds(step * depth, depth), pl.ds(feature, features)
        return ref.at[features_, rows] if along_rows else ref.at[rows, features_]

    def memory() -> None:
        def fetch(step: Array, _: None) -> None:
            slot = jax.lax.rem(step - first, jnp.int32(STAGES))

            @pl.when(step >= first + STAGES)
            def _free() -> None:
                launch.wait(free.at[slot])

            for i in range(n_together):
                block_row = launch.read(row, index * n_together + i)
                feature = (mine if is_swapped else block_row) * height
                source = part(a, step, feature, height, a_along_rows)
                lines = pl.ds(i * height, height)
                to = a_ring.at[slot, lines] if n_together > 1 else a_ring.at[slot]
                launch.fetch(source, to, full.at[slot])
            feature = (launch.read(row, index) if is_swapped else mine) * width
            source = part(b, step, feature, width, b_along_rows)
            launch.fetch(source, b_ring.at[slot], full.at[slot])

        jax.lax.fori_loop(first, last, fetch, None)

    def compute(thread: Array) -> None:
        lines = pl.ds(thread * ROWS, ROWS)

        def sum_up(total: Any) -> None:
            def add(step: Array, _: None) -> None:
                slot = jax.lax.rem(step - first, jnp.int32(STAGES))
                launch.wait(full.at[slot])
                if a_along_rows:
                    left = a_ring.at[slot, lines]
                else:
                    left = launch.turned(a_ring.at[slot, :, lines])
                right = launch.turned(b_ring.at[slot]) if b_along_rows else b_ring.at[slot]
                launch.start_product(total, left, right)
                # Products end in their order, so all but this one have: the buffers of the one
                # before are read no more. This one's own are given back one step later, and the
                # last one's never, because nothing is fetched after it.
                launch.finish_products(1)

                @pl.when(step > first)
                def _free() -> None:
                    launch.arrive(free.at[jax.lax.rem(step - first - 1, jnp.int32(STAGES))])

            jax.lax.fori_loop(first, last, add, None)
            # The sums are read: the last product has to be done.
            launch.finish_products(0)
            first_row = ((share * n_groups + index) * n_compute + thread) * ROWS
            launch.write(total[...], staging.at[thread], dw.at[pl.ds(first_row, ROWS)])

        launch.with_accumulators((ROWS, width), 1, sum_up)
        launch.finish_writes()

    launch.specialise(n_compute, memory, compute)
