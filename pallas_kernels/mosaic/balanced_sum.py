"""dW and db from the sums of programs that have as much to do each, in one pass.

As `gradient_sum.py`, but how many shares a block has is known on the device alone: they are loaded
one after the other, the next one while one is added. Beside the programs that write dW there is one
for each block column of db.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.lists import ListedBlocks
from pallas_kernels.mosaic import launch, warpgroup
from pallas_kernels.mosaic.balanced_groups import Groups
from pallas_kernels.mosaic.balanced_shares import Plan, Shares, shares_of
from pallas_kernels.mosaic.balanced_tasks import Columns, group_of_column
from pallas_kernels.mosaic.gradient_sum import Block, Tile, n_above, n_tiles, tile_of
from pallas_kernels.mosaic.gradient_tiles import ROWS
from pallas_kernels.sparse_layer import SparseLayer


def sum_balanced(
    parts: tuple[Float[Array, "_ width"], ...],
    blocks: ListedBlocks,
    layer: SparseLayer,
    plan: Plan,
    before: Array,
    *,
    by_rows: bool,
    interpret: bool,
) -> tuple[Float[Array, "in out"], Float[Array, " out"] | None]:
    """`dW`, exactly zero in dropped blocks, and `db` in float32, or None.

    Args:
      parts: float32, blocks `[cols, rows]`, one below the other: of every entry of the lists the
        first share, then of every program the blocks of a group of which it has a further one.
        For db blocks `[64, rows]` as well, of which the first row counts: of every share one for
        every block column, each of which has at least one.
      blocks: the kept blocks.
      layer: the layer.
      plan: how the steps are shared out.
      before: `table_of` the kept blocks.
      by_rows: whether entries are listed by block rows, not by columns.
      interpret: whether the kernel is interpreted.
    """
    width, n_columns = min(layer.block[0], ROWS), 0
    lists, columns = blocks.rows if by_rows else blocks.columns, blocks.columns
    operands = [blocks.which, lists.before, lists.start, before]
    out = [jax.ShapeDtypeStruct(layer.kernel_shape, jnp.dtype(layer.dtype))]
    if len(parts) == 2:
        operands += [columns.start, columns.across, columns.order]
        n_columns = columns.order.shape[1]
        # One row of few features is less than a warpgroup may write, so it writes 64 alike.
        out.append(jax.ShapeDtypeStruct((n_columns * ROWS, layer.block[0]), jnp.float32))
    dw, *db = launch.launch(
        "sparsemlp_sum_balanced",
        functools.partial(_kernel, layer=layer, plan=plan, by_rows=by_rows, n_columns=n_columns),
        [*operands, *parts],
        grid=(n_tiles(layer) + n_columns,),
        out=tuple(out),
        scratch={
            "sums": launch.shared((2, ROWS, width), jnp.float32, min(32, width)),
            "staging": launch.shared((ROWS, width), layer.dtype, min(32, width)),
            "full": launch.barriers(2, arrivals=n_above(layer)),
        },
        n_warpgroups=1,
        interpret=interpret,
    )
    return dw, db[0].reshape(n_columns, ROWS, -1)[:, 0].reshape(-1) if db else None


def _kernel(
    which: Any,
    before: Any,
    start: Any,
    groups: Any,
    *rest: Any,
    layer: SparseLayer,
    plan: Plan,
    by_rows: bool,
    n_columns: int,
    sums: Any,
    staging: Any,
    full: Any,
) -> None:
    table = functools.partial(warpgroup.Table, which=warpgroup.read(which, 0))
    index = jax.lax.axis_index(launch.X)
    of_blocks = table(before)
    # The tables are read where that is needed: most tiles hold nothing.
    counted = Groups(table(groups), table(start), plan.beside)
    find_shares = functools.partial(shares_of, plan, counted)
    if not n_columns:
        parts, dw = rest
    else:
        *lists, parts, parts_of_db, dw, db = rest

        @pl.when(index >= n_tiles(layer))
        def _of_column() -> None:
            shares, columns = find_shares(), Columns(*map(table, lists))
            column, group = group_of_column(
                index - n_tiles(layer), shares, columns, of_blocks, by_rows=by_rows
            )

            def add(share: Array, total: Array) -> Array:
                row = (share * n_columns + column) * ROWS
                return total + warpgroup.load_row(parts_of_db.at[row])

            none = jnp.zeros(layer.block[0], jnp.float32)
            total = jax.lax.fori_loop(0, shares.n_shares(group), add, none)
            rows = db.at[pl.ds(column * ROWS, ROWS)]
            warpgroup.put(warpgroup.as_rows(total, ROWS), rows)

    @pl.when(index < n_tiles(layer))
    def _of_tile() -> None:
        tile = tile_of(index, layer, of_blocks, by_rows=by_rows)

        def places_of(block: Block, shares: Shares) -> _Places:
            line = block.line if by_rows else tile.column
            return _places_of(block, line, shares, layer.n_kept)

        @pl.when(tile.is_kept)
        def _sum() -> None:
            shares = find_shares()
            places = [places_of(block, shares) for block in tile.blocks]
            total = _total(tile, places, parts, sums, full)
            warpgroup.write(total, staging, tile.destination(dw))

        @pl.when(~tile.is_kept)
        def _clear() -> None:
            total = jnp.zeros((ROWS, tile.width), jnp.float32)
            warpgroup.write(total, staging, tile.destination(dw))

        warpgroup.finish_writes()


def _total(tile: Tile, places: list["_Places"], parts: Any, sums: Any, full: Any) -> Array:
    """All shares of the blocks of a tile, added up in their order."""
    n_most = functools.reduce(jnp.maximum, (own.n for own in places))

    def fetch(share: Array) -> None:
        slot = jax.lax.rem(share, jnp.int32(2))
        for i, own in enumerate(places):
            above = pl.ds(i * tile.height, tile.height)
            source = tile.source(parts, own.of(share))
            warpgroup.fetch(source, sums.at[slot, above], full.at[slot])

    def add(share: Array, total: Array) -> Array:
        slot = jax.lax.rem(share, jnp.int32(2))
        pl.when(share + 1 < n_most)(functools.partial(fetch, share + 1))
        warpgroup.wait(full.at[slot])
        total = total + warpgroup.load_sums(sums.at[slot])
        # All warps have read it before the next share but one is loaded there.
        warpgroup.meet()
        return total

    fetch(jnp.int32(0))
    return jax.lax.fori_loop(0, n_most, add, jnp.zeros((ROWS, tile.width), jnp.float32))


class _Places(NamedTuple):
    """Where the shares of a block lie.

    Attributes:
      n: how many it has; none if it is dropped.
      first: the place of its first one.
      others: that of share s is this and s times `stride`.
      stride: blocks that a program has room for.
      nowhere: behind all blocks.
    """

    n: Array
    first: Array
    others: Array
    stride: int
    nowhere: int

    def of(self, share: Array) -> Array:
        """The place of a share; where nothing but zeros is loaded from if there are not so many."""
        place = jnp.where(share == 0, self.first, self.others + share * self.stride)
        return jnp.where(share < self.n, place, self.nowhere)


def _places_of(block: Block, line: Array, shares: Shares, n_kept: int) -> _Places:
    groups, plan = shares.groups, shares.plan
    group, index = groups.of_block(line, block.entry - groups.start.read(line))
    return _Places(
        n=jnp.where(block.is_kept, shares.n_shares(group), 0),
        first=block.entry,
        others=n_kept + shares.first_program(group) * plan.n_together + index,
        stride=plan.n_together,
        nowhere=plan.n_places(n_kept),
    )
