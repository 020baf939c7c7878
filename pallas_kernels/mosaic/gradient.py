"""`dW = (x^T dy) * M`: a product of two dense operands of which only the kept blocks are computed.

A program (`gradient_program.py`) owns one kept block, or a few of one line of blocks, and a share
of the rows. The shares are summed in a fixed order, so results are the same in every run.

The hardware multiplies 64 rows of the result at least, which is computed as it lies in dW, with x
as the left operand, or turned, with dy: a side of the block that has 64 becomes its rows. Kept
blocks of one column, or of one row, are put together, each from another part of the left operand:
until there are 64 rows, for which XLA transposes that operand, or more of them, so that the other
one is loaded for all. Tensor cores read float32 along the rows of x and dy alone: there XLA
transposes both.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.lists import KeptBlocks, listed
from pallas_kernels.mosaic import launch, warpgroup
from pallas_kernels.mosaic.gradient_program import Cut, Memory, Program
from pallas_kernels.mosaic.gradient_tiles import (
    DEPTH_BYTES,
    ROWS,
    GradientTiles,
    n_steps,
    shape_of,
)
from pallas_kernels.mosaic.groups import group, spread_parts
from pallas_kernels.sparse_layer import SparseLayer


@functools.partial(jax.jit, static_argnames=("layer", "tiles", "interpret"))
def kernel_gradient(
    x: Float[Array, "rows in"],
    dy: Float[Array, "rows out"],
    kept: KeptBlocks,
    layer: SparseLayer,
    tiles: GradientTiles,
    *,
    interpret: bool,
) -> Float[Array, "in out"]:
    """`dW`, exactly zero in dropped blocks.

    Args:
      x: `[rows, in]`.
      dy: `[rows, out]`.
      kept: the kept blocks.
      layer: the layer, without regard to its axis.
      tiles: how the product is cut.
      interpret: whether the kernel is interpreted.
    """
    (n_in, n_out), (rows, cols) = layer.kernel_shape, layer.block
    grid_shape = n_in // cols, n_out // rows
    blocks = listed(kept, grid_shape)
    groups = group(blocks, grid_shape, tiles.n_together, by_rows=tiles.is_swapped)
    n_groups = groups.line.shape[1]
    cut = _cut(x.shape[0], n_groups, layer, tiles)
    n_shares = pl.cdiv(cut.n_steps, cut.per_share)
    left, right = (dy, x) if tiles.is_swapped else (x, dy)
    is_wide = x.dtype.itemsize == 4
    contiguous = cut.depth if is_wide else min(cut.depth, cut.width)

    def laid(operand: Array, along_rows: bool) -> Array:
        if along_rows:
            return launch.padded(operand, cut.depth).T
        return launch.padded(operand, launch.TILE_ROWS)

    def ring(*shape: int) -> Any:
        return launch.shared((cut.stages, *shape), layer.dtype, contiguous)

    width, depth = cut.width, cut.depth
    left_ring = (cut.tall, depth) if cut.left_along_rows else (cut.n_together, depth, cut.height)

    parts = launch.launch(
        "sparsemlp_gradient",
        functools.partial(_kernel, cut=cut),
        [
            blocks.which,
            groups.line,
            groups.length,
            groups.across,
            laid(left, cut.left_along_rows),
            laid(right, cut.right_along_rows),
        ],
        grid=(n_groups, n_shares),
        out=jax.ShapeDtypeStruct((n_shares * n_groups * cut.tall, cut.width), jnp.float32),
        scratch={
            "left_ring": ring(*left_ring),
            "right_ring": ring(*((width, depth) if cut.right_along_rows else (depth, width))),
            "staging": launch.shared(
                (cut.n_compute, ROWS, cut.width), jnp.float32, min(32, cut.width)
            ),
            "full": launch.barriers(cut.stages, arrivals=cut.n_together + 1),
            "free": launch.barriers(cut.stages, arrivals=cut.n_compute),
        },
        n_warpgroups=cut.n_compute + 1,
        interpret=interpret,
    )
    parts = parts.reshape(n_shares, -1, cut.height, cut.width)
    return spread_parts(parts, groups, blocks, layer, is_swapped=tiles.is_swapped)


def _cut(n_rows: int, n_groups: int, layer: SparseLayer, tiles: GradientTiles) -> Cut:
    """How the product is cut."""
    shape = shape_of(layer, is_swapped=tiles.is_swapped)
    steps = n_steps(n_rows, layer.dtype)
    return Cut(
        height=shape.height,
        width=shape.width,
        n_together=tiles.n_together,
        depth=DEPTH_BYTES // jnp.dtype(layer.dtype).itemsize,
        stages=tiles.stages,
        n_steps=steps,
        per_share=tiles.per_share(steps, n_groups),
        left_along_rows=shape.left_along_rows,
        right_along_rows=shape.right_along_rows,
    )


def _kernel(
    which: Any,
    line: Any,
    length: Any,
    across: Any,
    left: Any,
    right: Any,
    dw: Any,
    *,
    cut: Cut,
    left_ring: Any,
    right_ring: Any,
    staging: Any,
    full: Any,
    free: Any,
) -> None:
    share, index = jax.lax.axis_index(launch.Y), jax.lax.axis_index(launch.X)
    table = functools.partial(warpgroup.Table, which=warpgroup.read(which, 0))
    n_blocks = table(length).read(index)
    first = share * cut.per_share
    program = Program(
        cut=cut,
        memory=Memory(left_ring, right_ring, staging, full, free),
        left=left,
        right=right,
        across=table(across),
        dw=dw,
        line=table(line).read(index),
        group=index,
        length=n_blocks,
        first=first,
        last=jnp.where(n_blocks > 0, jnp.minimum(first + cut.per_share, cut.n_steps), first),
        first_row=(share * line.shape[1] + index) * cut.tall,
    )
    launch.specialise(cut.n_compute, program.copy, program.multiply)
