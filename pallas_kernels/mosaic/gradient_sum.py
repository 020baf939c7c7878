"""dW from the sums of every share of the rows, in one pass that writes it as it lies in memory.

A program writes 64 rows of at most 64 features of dW: a part of one block, kept or dropped, or
blocks that lie above each other. What XLA makes of the same reads each number by itself.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float

from pallas_kernels.lists import ListedBlocks
from pallas_kernels.mosaic import launch, warpgroup
from pallas_kernels.mosaic.balanced_shares import Plan, shares_of
from pallas_kernels.mosaic.gradient_tiles import ROWS
from pallas_kernels.sparse_layer import SparseLayer

_MOST_BYTES, _MOST_COPIES = 128 << 10, 32
"""Of the sums of all shares in shared memory; of parts of these, each of which is code of its own.
"""


def fits(n_shares: int, layer: SparseLayer) -> bool:
    """Whether the sums of all shares have room, and their parts are few."""
    rows, cols = layer.block
    n_bytes = n_shares * ROWS * min(rows, ROWS) * 4
    return n_shares * _n_above(cols) <= _MOST_COPIES and n_bytes <= _MOST_BYTES


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
        grid=(pl.cdiv(n_in, ROWS) * n_out // width,),
        out=jax.ShapeDtypeStruct(layer.kernel_shape, jnp.dtype(layer.dtype)),
        scratch={
            "sums": launch.shared((n_shares, ROWS, width), jnp.float32, min(32, width)),
            "staging": launch.shared((ROWS, width), layer.dtype, min(32, width)),
            "full": launch.barriers(1, arrivals=n_shares * _n_above(cols)),
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
    width, height = min(rows, ROWS), min(cols, ROWS)
    *tables, parts, dw = rest
    of_kernel = functools.partial(warpgroup.Table, which=warpgroup.read(which, 0))
    index = jax.lax.axis_index(launch.X)
    tall, wide = jnp.int32(cols // height), jnp.int32(rows // width)
    above, beside = _divided(index, across * wide)
    (first_line, inside), (column, part) = _divided(above, tall), _divided(beside, wide)
    destination = dw.at[pl.ds(above * ROWS, ROWS), pl.ds(beside * width, width)]
    find = functools.partial(_find, table=of_kernel(before), down=down, across=across)
    n_blocks = _n_above(cols)
    found = [find(first_line * n_blocks + i, column, by_rows=by_rows) for i in range(n_blocks)]
    is_whole = plan is None and n_blocks == 1
    is_any_kept = functools.reduce(jnp.logical_or, (own.is_kept for own in found))

    def fetch(own: _Block, above: int) -> None:
        """Starts the copies of a block's sums; zeros of a share that it has not, or if dropped."""
        n_own: Any = n_shares
        if plan is not None:
            start, groups = map(of_kernel, tables)
            line = own.line if by_rows else column
            first = start.read(line)
            # That of a dropped block may have none.
            length = jnp.maximum(start.read(line + 1) - first, 1)
            shares = shares_of(plan, groups)
            n_own = shares.n_shares(shares.group_of(line, own.entry - first, length))
        for share in range(n_shares):
            # Behind the last share of all lies nothing, of which zeros are loaded.
            is_there = own.is_kept & (share < n_own)
            place = share if is_whole else jnp.where(is_there, share, n_shares)
            first = ((place * n_kept + own.entry) * tall + inside) * height
            source = parts.at[pl.ds(first, height), pl.ds(part * width, width)]
            warpgroup.fetch(source, sums.at[share, pl.ds(above, height)], full.at[0])

    @pl.when(is_any_kept)
    def _sum() -> None:
        for i, own in enumerate(found):
            fetch(own, i * height)
        warpgroup.wait(full.at[0])
        total = warpgroup.load_sums(sums.at[0])
        for share in range(1, n_shares):
            total = total + warpgroup.load_sums(sums.at[share])
        warpgroup.write(total, staging, destination)

    @pl.when(~is_any_kept)
    def _clear() -> None:
        warpgroup.write(jnp.zeros((ROWS, width), jnp.float32), staging, destination)

    warpgroup.finish_writes()


class _Block(NamedTuple):
    """A block of dW: its block row, its first entry in the lists, and whether it is kept."""

    line: Array
    entry: Array
    is_kept: Bool[Array, ""]


def _find(
    line: Array, column: Array, table: warpgroup.Table, down: int, across: int, *, by_rows: bool
) -> _Block:
    """The block of a block row and column; a dropped one where there are not so many rows."""
    is_there = line < down
    line = jnp.minimum(line, down - 1)
    number = line * across + column if by_rows else column * down + line
    entry = table.read(number)
    return _Block(line, entry, is_there & (table.read(number + 1) > entry))


def _n_above(cols: int) -> int:
    """Blocks of so many rows of dW, above each other, that a program writes 64 rows of."""
    return max(1, ROWS // cols)


def _divided(number: Array, by: Array) -> tuple[Array, Array]:
    return jax.lax.div(number, by), jax.lax.rem(number, by)
