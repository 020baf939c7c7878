"""`dW = (x^T dy) * M`: a product of two dense operands of which only the kept blocks are computed.

A program (`gradient_program.py`) owns a group of kept blocks of one line of blocks, and a share of
the rows. The shares are summed in a fixed order, so results are the same in every run.

Blocks of one block column share the features of dy, those of one block row the features of x, which
are loaded once for a group; of the other operand each has features of its own. The hardware
multiplies 64 rows of the result at least. Where the side of a block that lies along them is
shorter, blocks are put above each other until there are 64, for which XLA transposes the operand
that is not shared; by block rows the result is computed turned then, with dy as the left operand.
Tensor cores read float32 along the rows of x and dy alone: there XLA transposes both.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from pallas_kernels.layout import spread_gradient
from pallas_kernels.lists import KeptBlocks, ListedBlocks, listed
from pallas_kernels.mosaic import gradient_sum, launch, warpgroup
from pallas_kernels.mosaic.gradient_operands import Operands, Ring, cut_of, laid_out, rings
from pallas_kernels.mosaic.gradient_program import Cut, Program, Staging, find_group
from pallas_kernels.mosaic.gradient_tiles import ROWS, GradientTiles, n_steps
from pallas_kernels.mosaic.groups import n_groups_of
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
    grid_shape = layer.grid_shape
    blocks = listed(kept, grid_shape)
    lists = blocks.rows if tiles.by_rows else blocks.columns
    cut = _cut(x.shape[0], layer, tiles)
    n_groups = n_groups_of(layer.n_kept, cut.shape.n_lines, cut.n_together)
    n_shares = pl.cdiv(cut.n_steps, cut.per_share)
    parts = launch.launch(
        "sparsemlp_gradient",
        functools.partial(_kernel, cut=cut, n_kept=layer.n_kept),
        [
            blocks.which,
            lists.start,
            lists.across,
            *laid_out(x, dy, cut, by_rows=tiles.by_rows),
        ],
        grid=(n_groups, n_shares),
        out=jax.ShapeDtypeStruct(
            (n_shares * layer.n_kept * cut.shape.height, cut.shape.width), jnp.float32
        ),
        scratch={
            **rings(cut, layer.dtype),
            "staging": launch.shared(
                (cut.n_staged, ROWS, cut.shape.width), jnp.float32, min(32, cut.shape.width)
            ),
            "left": launch.barriers(cut.n_staged, arrivals=1),
        },
        n_warpgroups=cut.n_compute + 1,
        interpret=interpret,
    )
    if not cut.shape.is_turned and gradient_sum.fits(n_shares, layer):
        return gradient_sum.sum_shares(
            parts, blocks, layer, n_shares, by_rows=tiles.by_rows, interpret=interpret
        )
    parts = parts.reshape(n_shares, -1, cut.shape.height, cut.shape.width)
    sums = jnp.sum(parts, axis=0).astype(layer.dtype)
    if cut.shape.is_turned:
        # Turned by themselves: whoever reads the gradient would read across the blocks.
        sums = jax.lax.optimization_barrier(sums.swapaxes(1, 2))
    # The entries of block rows are in the order of the ids.
    place = None if tiles.by_rows else _place(blocks, grid_shape)
    return spread_gradient(sums, blocks, layer.kernel_shape, place)


def _place(blocks: ListedBlocks, grid_shape: tuple[int, int]) -> Int[Array, " k"]:
    """Which entry of the block columns each kept block is."""
    (down, across), ids = grid_shape, blocks.own(blocks.ids)
    return blocks.own(blocks.columns.before)[ids % across * down + ids // across]


def _cut(n_rows: int, layer: SparseLayer, tiles: GradientTiles) -> Cut:
    """How the product is cut."""
    cut = cut_of(layer, tiles)
    n_groups = n_groups_of(layer.n_kept, cut.shape.n_lines, tiles.n_together)
    steps = n_steps(n_rows, layer.dtype)
    per_share = tiles.per_share(steps, n_groups)
    return Cut(cut.shape, cut.n_together, cut.depth, cut.stages, steps, per_share)


def _kernel(
    which: Any,
    start: Any,
    across: Any,
    own_operand: Any,
    shared_operand: Any,
    dw: Any,
    *,
    cut: Cut,
    n_kept: int,
    own: Any,
    shared: Any,
    staging: Any,
    left: Any,
    full: Any,
    free: Any,
) -> None:
    share, index = jax.lax.axis_index(launch.Y), jax.lax.axis_index(launch.X)
    table = functools.partial(warpgroup.Table, which=warpgroup.read(which, 0))
    group = find_group(table(start), index, cut)
    first = share * cut.per_share
    program = Program(
        cut=cut,
        operands=Operands(cut, Ring(own, shared, full, free), own_operand, shared_operand),
        staging=Staging(staging, left),
        across=table(across),
        dw=dw,
        group=group,
        first=first,
        last=jnp.where(group.length > 0, jnp.minimum(first + cut.per_share, cut.n_steps), first),
        first_block=share * n_kept + group.entry,
    )
    launch.specialise(cut.n_compute, program.copy, program.multiply)
