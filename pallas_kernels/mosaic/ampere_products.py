"""`y = x (W * M) + b` and `dx = dy (W * M)^T` on Ampere, in bfloat16.

A program of one warpgroup owns some rows of the result and a share of its block columns, longest
first. The rows of the dense operand that it needs, the panel, stay in shared memory where they fit;
else each kept block of weights brings its part of them along. The kept blocks of one column after
another stream through a ring of buffers, several ahead of the one that is multiplied, also from one
column to the next. A block that is dropped is never loaded.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from pallas_kernels.gelu import gelu
from pallas_kernels.layout import list_columns, list_rows
from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.ampere import Instructions, shared
from pallas_kernels.mosaic.ampere_product_tiles import Tiles, tiles_of
from pallas_kernels.sparse_layer import SparseLayer

PROGRAMS = 432
"""How many programs there are at least, if there is work: four for each multiprocessor of an A100.
Not tuned yet."""


@functools.partial(
    jax.jit, static_argnames=("layer", "transposed", "interpret", "with_gelu", "memory_bytes")
)
def multiply(
    x: Float[Array, "rows n"],
    kernel: Float[Array, "in out"],
    bias: Float[Array, " out"] | None,
    kept: Int[Array, " k"],
    layer: SparseLayer,
    *,
    transposed: bool,
    interpret: bool,
    with_gelu: bool = False,
    memory_bytes: int,
) -> Float[Array, "rows m"]:
    """`x (W * M) + b`, GELU of it, or with `transposed` `x (W * M)^T`.

    Args:
      x: `[rows, n]`; n is `in`, or `out` if transposed.
      kernel: the whole kernel, of which the kept blocks are read.
      bias: `[out]`, or None; not with `transposed`.
      kept: ids of the kept blocks.
      layer: the layer, bfloat16, without regard to its axis.
      transposed: which of the two products.
      interpret: whether the kernel is interpreted.
      with_gelu: whether it is GELU of the sums that is written.
      memory_bytes: of shared memory.
    """
    (n_in, n_out), (rows, cols) = layer.kernel_shape, layer.block
    width, depth = (cols, rows) if transposed else (rows, cols)
    n_result, n_blocks = (n_in, n_out // depth) if transposed else (n_out, n_in // depth)
    lists = (list_rows if transposed else list_columns)(kept, (n_in // cols, n_out // rows))
    n_rows = x.shape[0]
    tiles = tiles_of(width, depth, n_blocks, n_rows, memory_bytes)
    assert tiles is not None, f"blocks {width}x{depth} do not fit {memory_bytes} bytes"
    x = launch.padded(x, tiles.rows)
    n_tiles = x.shape[0] // tiles.rows
    n_shares = min(n_result // width, pl.cdiv(PROGRAMS, n_tiles))
    parts = n_blocks if tiles.is_resident else tiles.stages
    tile = (width, depth) if transposed else (depth, width)
    y = launch.launch(
        launch.product_name(transposed=transposed, with_gelu=with_gelu),
        functools.partial(
            _kernel,
            tiles=tiles,
            transposed=transposed,
            n_shares=n_shares,
            has_bias=bias is not None,
            with_gelu=with_gelu,
            do=Instructions(interpret),
        ),
        [lists.start, lists.across, lists.order, x, kernel, *([] if bias is None else [bias])],
        grid=(n_shares * n_tiles,),
        out=jax.ShapeDtypeStruct((x.shape[0], n_result), x.dtype),
        scratch={
            "panel": shared(parts, tiles.rows, depth, dtype=x.dtype),
            "ring": shared(tiles.stages, *tile, dtype=x.dtype),
            "staging": shared(tiles.rows, width, dtype=x.dtype),
        },
        n_warpgroups=1,
        interpret=interpret,
    )
    return y[:n_rows]


class _Place(NamedTuple):
    """An entry of the lists, and the turn of the block column that it belongs to.

    Attributes:
      turn: how many columns of the program come before.
      line: the column.
      entry: the entry.
      last: where the entries of the column end; there is none at or behind it.
    """

    turn: Array
    line: Array
    entry: Array
    last: Array


def _kernel(
    start: Any,
    across: Any,
    order: Any,
    x: Any,
    kernel: Any,
    *rest: Any,
    tiles: Tiles,
    transposed: bool,
    n_shares: int,
    has_bias: bool,
    with_gelu: bool,
    do: Instructions,
    panel: Any,
    ring: Any,
    staging: Any,
) -> None:
    *bias, y = rest
    n_lines, width = order.shape[0], staging.shape[1]
    depth, stages = panel.shape[2], tiles.stages
    tile, share = launch.place(n_shares)
    rows = pl.ds(tile * tiles.rows, tiles.rows)
    n_mine = jax.lax.div(n_lines - share + n_shares - 1, n_shares)
    # A part of the panel that does not stay is a copy of its own.
    copies = 1 if tiles.is_resident else 2

    def beginning(turn: Array) -> _Place:
        """The first entry of a turn's column; none of it behind the program's last turn."""
        line = launch.read(order, jnp.minimum(turn * n_shares + share, n_lines - 1))
        first, last = launch.read(start, line), launch.read(start, line + 1)
        return _Place(turn, line, first, jnp.where(turn < n_mine, last, first))

    def after(place: _Place) -> _Place:
        """The next entry. Columns are longest first: behind an empty one there is none."""
        return jax.lax.cond(
            place.entry + 1 < place.last,
            lambda: place._replace(entry=place.entry + 1),
            lambda: beginning(place.turn + 1),
        )

    def part_of_x(block: Array) -> Any:
        return x.at[rows, pl.ds(block * depth, depth)]

    def fetch(place: _Place, slot: Array) -> None:
        block = launch.read(across, place.entry)
        features = (pl.ds(place.line * width, width), pl.ds(block * depth, depth))
        do.fetch(kernel.at[features if transposed else features[::-1]], ring.at[slot])
        if not tiles.is_resident:
            do.fetch(part_of_x(block), panel.at[slot])

    def fetch_ahead(ahead: _Place, step: Array) -> _Place:
        @pl.when(ahead.entry < ahead.last)
        def _fetch() -> None:
            fetch(ahead, jax.lax.rem(step, jnp.int32(stages)))

        return after(ahead)

    def of_line(turn: Array, state: tuple[Array, _Place]) -> tuple[Array, _Place]:
        here = beginning(turn)

        def add(entry: Array, state: tuple[Array, Array, _Place]) -> tuple[Array, Array, _Place]:
            total, step, ahead = state
            slot = jax.lax.rem(step, jnp.int32(stages))
            is_more = ahead.entry < ahead.last

            # So far this entry and the stages - 2 behind it were fetched: it is there once no more
            # than those are on their way. Near the end there are fewer behind it: wait for all.
            @pl.when(is_more)
            def _wait() -> None:
                do.wait((stages - 2) * copies)

            @pl.when(~is_more)
            def _wait_for_all() -> None:
                do.wait(0)

            # All threads have waited, so all have read the buffer of the step before this one,
            # which is the next to be filled.
            ahead = fetch_ahead(ahead, step + stages - 1)
            block = launch.read(across, entry) if tiles.is_resident else slot
            weights = launch.turned(ring.at[slot]) if transposed else ring.at[slot]
            left, right = do.load(panel.at[block], "left"), do.load(weights, "right")
            return do.add_product(total, left, right), step + 1, ahead

        zeros = do.zeros((tiles.rows, width), x.dtype)
        total, step, ahead = jax.lax.fori_loop(here.entry, here.last, add, (zeros, *state))
        features = pl.ds(here.line * width, width)
        if has_bias:
            total = do.add_row(total, bias[0].at[features], x.dtype)
        if with_gelu:
            total, _ = gelu(total)
        do.write(total, staging, y.at[rows, features])
        return step, ahead

    ahead = beginning(jnp.int32(0))
    if tiles.is_resident:
        # Copies end in their order: whoever waits for a block of weights has waited for these. A
        # program whose columns are all empty waits for none, and starts none.
        @pl.when(ahead.entry < ahead.last)
        def _fetch_panel() -> None:
            jax.lax.fori_loop(
                0,
                panel.shape[0],
                lambda block, _: do.fetch(part_of_x(block), panel.at[block]),
                None,
            )

    for step in range(stages - 1):
        ahead = fetch_ahead(ahead, jnp.int32(step))
    jax.lax.fori_loop(0, n_mine, of_line, (jnp.int32(0), ahead))
