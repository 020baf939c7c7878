"""`y = x (W * M) + b` and `dx = dy (W * M)^T`: a dense operand times a block-sparse one.

A program owns some rows of the result and a share of its block columns. The rows of the dense
operand that it needs, the panel, stay in shared memory; the kept blocks of one column after another
stream through a ring of buffers. One warpgroup starts the copies, the others multiply. A block that
is dropped is never loaded. Longest columns first.

A panel that does not fit is cut along the contracted features. Its pieces take turns in two
buffers, and several columns are summed at once, so that a piece serves them all.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from pallas_kernels.gelu import gelu
from pallas_kernels.layout import list_columns, list_rows
from pallas_kernels.mosaic import launch
from pallas_kernels.mosaic.product_tiles import PROGRAMS, ROWS, Tiles, piece_starts, tiles_of
from pallas_kernels.sparse_layer import SparseLayer


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
    memory_bytes: int = launch.SHARED_MEMORY_BYTES,
) -> Float[Array, "rows m"]:
    """`x (W * M) + b`, GELU of it, or with `transposed` `x (W * M)^T`.

    Tensor cores read float32 along the contracted features alone: there XLA transposes the kernel
    for the first product. It is compiled apart: layers that are alike are lowered once.

    Args:
      x: `[rows, n]`; n is `in`, or `out` if transposed.
      kernel: the whole kernel, of which the kept blocks are read.
      bias: `[out]`, or None; not with `transposed`.
      kept: ids of the kept blocks.
      layer: the layer, without regard to its axis.
      transposed: which of the two products.
      interpret: whether the kernel is interpreted.
      with_gelu: whether it is GELU of the sums that is written.
      memory_bytes: of shared memory.
    """
    (n_in, n_out), (rows, cols) = layer.kernel_shape, layer.block
    width, depth = (cols, rows) if transposed else (rows, cols)
    n_result, n_blocks = (n_in, n_out // depth) if transposed else (n_out, n_in // depth)
    lists = (list_rows if transposed else list_columns)(kept, (n_in // cols, n_out // rows))
    is_wide = jnp.dtype(layer.dtype).itemsize == 4
    if is_wide and not transposed:
        kernel = kernel.T
    turned = transposed or is_wide
    n_rows = x.shape[0]
    x = launch.padded(x, launch.TILE_ROWS)
    tiles = tiles_of(width, depth, n_blocks, layer.dtype, n_rows, memory_bytes)
    contiguous = min(32 if is_wide else 64, depth, depth if turned else width)
    size = tiles.n_compute * ROWS
    n_groups = pl.cdiv(n_result // width, tiles.lines)
    n_tiles = pl.cdiv(x.shape[0], size)
    n_shares = min(n_groups, max(1, PROGRAMS // n_tiles))
    buffers = 1 if tiles.pieces == 1 else 2

    def shared(*shape: int, contiguous: int = contiguous) -> Any:
        return launch.shared(shape, layer.dtype, contiguous)

    y = launch.launch(
        launch.product_name(transposed=transposed, with_gelu=with_gelu),
        functools.partial(
            _kernel,
            tiles=tiles,
            width=width,
            depth=depth,
            turned=turned,
            n_shares=n_shares,
            has_bias=bias is not None,
            with_gelu=with_gelu,
        ),
        [
            piece_starts(lists, tiles, n_blocks),
            lists.across,
            lists.order,
            x,
            kernel,
            *([] if bias is None else [bias]),
        ],
        grid=(n_shares * n_tiles,),
        out=jax.ShapeDtypeStruct((x.shape[0], n_result), x.dtype),
        scratch={
            "panel": shared(buffers, tiles.blocks, size, depth),
            "ring": shared(tiles.stages, *((width, depth) if turned else (depth, width))),
            "staging": shared(
                tiles.n_compute, ROWS, width, contiguous=min(32 if is_wide else 64, width)
            ),
            "panel_full": launch.barriers(buffers, arrivals=tiles.blocks),
            "panel_free": launch.barriers(buffers, arrivals=tiles.n_compute),
            "ring_full": launch.barriers(tiles.stages, arrivals=1),
            "ring_free": launch.barriers(tiles.stages, arrivals=tiles.n_compute),
        },
        n_warpgroups=tiles.n_compute + 1,
        interpret=interpret,
    )
    return y[:n_rows]


def _kernel(
    start: Any,
    across: Any,
    order: Any,
    x: Any,
    kernel: Any,
    *rest: Any,
    tiles: Tiles,
    width: int,
    depth: int,
    turned: bool,
    n_shares: int,
    has_bias: bool,
    with_gelu: bool,
    panel: Any,
    ring: Any,
    staging: Any,
    panel_full: Any,
    panel_free: Any,
    ring_full: Any,
    ring_free: Any,
) -> None:
    *bias, y = rest
    n_lines = order.shape[0]
    n_groups = pl.cdiv(n_lines, tiles.lines)
    size = tiles.n_compute * ROWS
    tile, share = launch.place(n_shares)
    first_row = tile * size
    n_mine = jax.lax.div(n_groups - share + n_shares - 1, n_shares)
    is_whole = tiles.pieces == 1

    def line_of(turn: Array, of_group: int) -> tuple[Array, Array]:
        """A block column of a group, and whether there is one: the last group may be short."""
        place = (turn * n_shares + share) * tiles.lines + of_group
        return launch.read(order, jnp.minimum(place, n_lines - 1)), place < n_lines

    def entries(turn: Array, of_group: int, piece: Array) -> tuple[Array, Array, Array]:
        line, exists = line_of(turn, of_group)
        at = line * (tiles.pieces + 1) + piece
        first = launch.read(start, at)
        return line, first, jnp.where(exists, launch.read(start, at + 1), first)

    def memory() -> None:
        def fetch_piece(use: Array, piece: Array) -> None:
            buffer = jax.lax.rem(use, jnp.int32(2)) if not is_whole else 0
            if not is_whole:

                @pl.when(use >= 2)
                def _free() -> None:
                    launch.wait(panel_free.at[buffer])

            def fetch_block(block: Array, _: None) -> None:
                # Behind the last block there are zeros, which no entry names.
                feature = (piece * tiles.blocks + block) * depth
                launch.fetch(
                    x.at[pl.ds(first_row, size), pl.ds(feature, depth)],
                    panel.at[buffer, block],
                    panel_full.at[buffer],
                )

            jax.lax.fori_loop(0, tiles.blocks, fetch_block, None)

        def fetch_blocks(turn: Array, of_group: int, piece: Array, step: Array) -> Array:
            line, first, last = entries(turn, of_group, piece)

            def fetch_weights(entry: Array, step: Array) -> Array:
                slot = jax.lax.rem(step, jnp.int32(tiles.stages))

                @pl.when(step >= tiles.stages)
                def _free() -> None:
                    launch.wait(ring_free.at[slot])

                features = (
                    pl.ds(line * width, width),
                    pl.ds(launch.read(across, entry) * depth, depth),
                )
                source = kernel.at[features if turned else features[::-1]]
                launch.fetch(source, ring.at[slot], ring_full.at[slot])
                return step + 1

            return jax.lax.fori_loop(first, last, fetch_weights, step)

        def group(turn: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            def of_piece(piece: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
                use, step = state
                if not is_whole:
                    fetch_piece(use, piece)
                for of_group in range(tiles.lines):
                    step = fetch_blocks(turn, of_group, piece, step)
                return use + 1, step

            return jax.lax.fori_loop(0, tiles.pieces, of_piece, state)

        if is_whole:
            fetch_piece(jnp.int32(0), jnp.int32(0))
        jax.lax.fori_loop(0, n_mine, group, (jnp.int32(0), jnp.int32(0)))

    def compute(thread: Array) -> None:
        mine = pl.ds(thread * ROWS, ROWS)

        def add_blocks(
            total: Any, turn: Array, of_group: int, piece: Array, buffer: Any, step: Array
        ) -> Array:
            _, first, last = entries(turn, of_group, piece)

            def add(entry: Array, step: Array) -> Array:
                slot = jax.lax.rem(step, jnp.int32(tiles.stages))
                block = launch.read(across, entry) - piece * tiles.blocks
                launch.wait(ring_full.at[slot])
                weights = launch.turned(ring.at[slot]) if turned else ring.at[slot]
                launch.start_product(total, panel.at[buffer, block, mine], weights)
                # Products end in their order, so all but this one have: the buffer of the one
                # before is read no more. This one's own is given back one step later.
                launch.finish_products(1)

                @pl.when(entry > first)
                def _free() -> None:
                    before = jax.lax.rem(step + tiles.stages - 1, jnp.int32(tiles.stages))
                    launch.arrive(ring_free.at[before])

                return step + 1

            step = jax.lax.fori_loop(first, last, add, step)
            # The last product of the loop still reads its buffer, and the panel.
            launch.finish_products(0)

            @pl.when(last > first)
            def _free() -> None:
                before = jax.lax.rem(step + tiles.stages - 1, jnp.int32(tiles.stages))
                launch.arrive(ring_free.at[before])

            return step

        def group(turn: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            def sum_up(*totals: Any) -> tuple[Array, Array]:
                def of_piece(piece: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
                    use, step = state
                    buffer = 0 if is_whole else jax.lax.rem(use, jnp.int32(2))
                    if not is_whole:
                        launch.wait(panel_full.at[buffer])
                    for of_group, total in enumerate(totals):
                        step = add_blocks(total, turn, of_group, piece, buffer, step)
                    if not is_whole:
                        # `add_blocks` has left no product that reads the piece.
                        launch.arrive(panel_free.at[buffer])
                    return use + 1, step

                after = jax.lax.fori_loop(0, tiles.pieces, of_piece, state)
                for of_group, total in enumerate(totals):
                    finish(total, turn, of_group)
                return after

            return launch.with_accumulators((ROWS, width), tiles.lines, sum_up)

        def finish(total: Any, turn: Array, of_group: int) -> None:
            line, exists = line_of(turn, of_group)
            features = pl.ds(line * width, width)
            value = total[...]
            if has_bias:
                value = value + launch.load_row(bias[0].at[features], ROWS)
            if with_gelu:
                value, _ = gelu(value)

            @pl.when(exists)
            def _write() -> None:
                rows = pl.ds(first_row + thread * ROWS, ROWS)
                launch.write(value, staging.at[thread], y.at[rows, features])

        if is_whole:
            launch.wait(panel_full.at[0])
        jax.lax.fori_loop(0, n_mine, group, (jnp.int32(0), jnp.int32(0)))
        launch.finish_writes()

    launch.specialise(tiles.n_compute, memory, compute)
