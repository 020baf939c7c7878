"""dW from the sums of every share of the rows, in one pass that writes it as it lies in memory.

A program writes 64 rows of at most 64 features of one block of dW, kept or dropped. What XLA makes
of the same reads each number by itself.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.lists import ListedBlocks
from pallas_kernels.mosaic import launch, warpgroup
from pallas_kernels.mosaic.balanced_shares import Plan, shares_of
from pallas_kernels.mosaic.gradient_tiles import ROWS
from pallas_kernels.sparse_layer import SparseLayer

_MOST_BYTES = 128 << 10
"""Of the sums of all shares in shared memory."""


def fits(n_shares: int, layer: SparseLayer) -> bool:
    """Whether blocks are whole tiles of rows, and the sums of all shares have room."""
    rows, cols = layer.block
    return cols % ROWS == 0 and n_shares * ROWS * min(rows, ROWS) * 4 <= _MOST_BYTES


def sum_shares(
    parts: Float[Array, "shares_entries_height width"],
    blocks: ListedBlocks,
    layer: SparseLayer,
    n_shares: int,
    *,
    by_rows: bool,
    interpret: bool,
    balanced: tuple[Plan, Array] | None = None,
) -> Float[Array, "in out"]:
    """`dW`, exactly zero in dropped blocks.

    Args:
      parts: float32, of every share and every entry of the lists a block `[cols, rows]`, one below
        the other.
      blocks: the kept blocks.
      layer: the layer.
      n_shares: how many shares of the rows there are.
      by_rows: whether entries are listed by block rows, not by columns.
      interpret: whether the kernel is interpreted.
      balanced: how these were shared out evenly, and the `table_of` the kept blocks: then some
        blocks have fewer, and what would be the sums of others is anything.
    """
    (n_in, n_out), (rows, cols) = layer.kernel_shape, layer.block
    down, across, width = n_in // cols, n_out // rows, min(rows, ROWS)
    lists = blocks.rows if by_rows else blocks.columns
    return launch.launch(
        "sparsemlp_sum_shares",
        functools.partial(
            _kernel,
            grid_shape=(down, across),
            block=layer.block,
            n_kept=layer.n_kept,
            n_shares=n_shares,
            by_rows=by_rows,
            plan=None if balanced is None else balanced[0],
        ),
        [
            blocks.which,
            lists.before,
            *([] if balanced is None else [lists.start, balanced[1]]),
            parts,
        ],
        grid=(n_in // ROWS * n_out // width,),
        out=jax.ShapeDtypeStruct(layer.kernel_shape, jnp.dtype(layer.dtype)),
        scratch={
            "sums": launch.shared((n_shares, ROWS, width), jnp.float32, min(32, width)),
            "staging": launch.shared((ROWS, width), layer.dtype, min(32, width)),
            "full": launch.barriers(1, arrivals=n_shares),
        },
        n_warpgroups=1,
        interpret=interpret,
    )


def _kernel(
    which: Any,
    before: Any,
    *rest: Any,
    grid_shape: tuple[int, int],
    block: tuple[int, int],
    n_kept: int,
    n_shares: int,
    by_rows: bool,
    plan: Plan | None,
    sums: Any,
    staging: Any,
    full: Any,
) -> None:
    (rows, cols), (down, across) = block, grid_shape
    width = min(rows, ROWS)
    *tables, parts, dw = rest
    of_kernel = functools.partial(warpgroup.Table, which=warpgroup.read(which, 0))
    table = of_kernel(before)
    index = jax.lax.axis_index(launch.X)
    tall, wide = jnp.int32(cols // ROWS), jnp.int32(rows // width)
    above, beside = _divided(index, across * wide)
    (line, inside), (column, part) = _divided(above, tall), _divided(beside, wide)
    number = line * across + column if by_rows else column * down + line
    entry = table.read(number)
    is_kept = table.read(number + 1) > entry
    destination = dw.at[pl.ds(above * ROWS, ROWS), pl.ds(beside * width, width)]

    @pl.when(is_kept)
    def _sum() -> None:
        n_own: Any = n_shares
        if plan is not None:
            start, groups = map(of_kernel, tables)
            own = line if by_rows else column
            first, after = start.read(own), start.read(own + 1)
            shares = shares_of(plan, groups)
            n_own = shares.n_shares(shares.group_of(own, entry - first, after - first))
        for share in range(n_shares):
            # Behind the last share of all lies nothing, of which zeros are loaded.
            place = share if plan is None else jnp.where(share < n_own, share, n_shares)
            first = ((place * n_kept + entry) * tall + inside) * ROWS
            source = parts.at[pl.ds(first, ROWS), pl.ds(part * width, width)]
            warpgroup.fetch(source, sums.at[share], full.at[0])
        warpgroup.wait(full.at[0])
        total = warpgroup.load_sums(sums.at[0])
        for share in range(1, n_shares):
            total = total + warpgroup.load_sums(sums.at[share])
        warpgroup.write(total, staging, destination)

    @pl.when(~is_kept)
    def _clear() -> None:
        warpgroup.write(jnp.zeros((ROWS, width), jnp.float32), staging, destination)

    warpgroup.finish_writes()


def _divided(number: Array, by: Array) -> tuple[Array, Array]:
    return jax.lax.div(number, by), jax.lax.rem(number, by)
