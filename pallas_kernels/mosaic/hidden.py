"""`gelu(h)` and `(dy (W2 * M2)^T) gelu'(h)` of `h = x (W1 * M1) + b1`, in one kernel.

What the gradients of a channel MLP need of its hidden units, in the place of two products and a
pass over both results. Here it is cut and launched; `hidden_program` tells what runs on the GPU.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from pallas_kernels import gelu
from pallas_kernels.lists import BlockLists, listed
from pallas_kernels.mosaic import hidden_program, launch, product_copies, product_sums, warpgroup
from pallas_kernels.mosaic.hidden_tiles import HiddenTiles, hidden_of
from pallas_kernels.mosaic.product_program import Memory
from pallas_kernels.mosaic.product_share import Share
from pallas_kernels.mosaic.product_tiles import ROWS, Product, needed_blocks, steps_of_ranks
from pallas_kernels.sparse_layer import SparseLayer, Weights

_TABLES: tuple[str, ...] = ("which", "before", "needed", "steps", "across")


@functools.partial(jax.jit, static_argnames=("layers", "tiles", "interpret"))
def hidden_units(
    x: Float[Array, "rows n"],
    dy: Float[Array, "rows n"],
    weights: tuple[Weights, Weights],
    layers: tuple[SparseLayer, SparseLayer],
    tiles: HiddenTiles,
    *,
    interpret: bool,
) -> tuple[Float[Array, "rows units"], Float[Array, "rows units"]]:
    """Hidden units after GELU, and the gradient before it.

    Tensor cores read float32 along the contracted features alone: there XLA transposes W1.

    Args:
      x: `[rows, n]`, not empty.
      dy: the gradient of the second layer's result.
      weights: of both layers, each of which keeps a block.
      layers: both layers, whose blocks are each other's turned.
      tiles: how it is cut.
      interpret: whether the kernel is interpreted.
    """
    hidden = hidden_of(layers, x.shape[0])
    product, n_rows = hidden.units, x.shape[0]
    width, depth = product.width, product.depth
    grids = (product.n_blocks, product.n_lines), (product.n_lines, product.n_blocks)
    blocks = [listed(own.kept, grid) for own, grid in zip(weights, grids, strict=True)]
    lists = blocks[0].columns, blocks[1].rows
    tables = [
        table
        for its, own in zip(blocks, lists, strict=True)
        for table in (its.which, *_tables(own, tiles))
    ]
    is_wide = jnp.dtype(x.dtype).itemsize == 4
    w1, bias, w2 = weights[0].kernel, weights[0].bias, weights[1].kernel
    w1 = w1.T if is_wide else w1
    x, dy = (launch.padded(a, launch.TILE_ROWS) for a in (x, dy))
    contiguous = min(32 if is_wide else 64, width, depth)
    is_whole = tiles.pieces == 1
    panels = ["panel_x", "panel_dy"] if is_whole else ["panel"]
    buffers = 1 if is_whole else 2

    def shared(*shape: int) -> Any:
        return launch.shared(shape, x.dtype, contiguous)

    full = launch.barriers(tiles.stages, arrivals=tiles.abreast)
    free = launch.barriers(tiles.stages, arrivals=tiles.n_compute, cluster=tiles.cluster)
    ring = (tiles.stages, tiles.abreast)
    result = jax.ShapeDtypeStruct((x.shape[0], product.n_lines * width), x.dtype)
    n_shares = tiles.n_shares(product)
    found = launch.launch(
        "sparsemlp_hidden",
        functools.partial(
            _kernel,
            product=product,
            tiles=tiles,
            is_turned=is_wide,
            has_bias=bias is not None,
            n_shares=n_shares,
        ),
        [*tables, x, dy, w1, w2, *([] if bias is None else [bias])],
        grid=(n_shares * tiles.n_tiles(product) // tiles.cluster,),
        cluster=tiles.cluster,
        out=(result, result),
        scratch={
            **{name: shared(buffers, tiles.blocks, tiles.rows, depth) for name in panels},
            "ring1": shared(*ring, *((width, depth) if is_wide else (depth, width))),
            "ring2": shared(*ring, width, depth),
            "staging1": shared(tiles.n_compute, ROWS, width),
            "staging2": shared(tiles.n_compute, ROWS, width),
            **{f"{name}_full": launch.barriers(buffers, tiles.blocks) for name in panels},
            **({} if is_whole else {"panel_free": launch.barriers(2, tiles.n_compute)}),
            "ring1_full": full,
            "ring1_free": free,
            "ring2_full": full,
            "ring2_free": free,
        },
        n_warpgroups=tiles.n_compute + 1,
        interpret=interpret,
    )
    units, gradient = (a[:n_rows] for a in found)
    return units, gradient


def through_gelu(
    before: Float[Array, "rows units"], after: Float[Array, "rows units"]
) -> tuple[Float[Array, "rows units"], Float[Array, "rows units"]]:
    """The same by XLA, from what two products have computed.

    Args:
      before: hidden units before GELU.
      after: the gradient after it.
    """
    both = gelu.through_gelu(before, after)
    # Where a kernel reads them turned, XLA would turn all on the way to them, in float32, and it
    # would keep that for the sum of the bias as well.
    return jax.lax.optimization_barrier(with_layout_constraint(both, Layout((0, 1))))


def _tables(lists: BlockLists, tiles: HiddenTiles) -> tuple[Array, Array, Array, Array]:
    """Before, needed, steps and across of a share, for layers that are alike.

    Columns are computed as they lie: their order by length is another one for either product.
    """

    def by_piece(lists: BlockLists) -> tuple[Array, Array]:
        needed = needed_blocks(lists, tiles)
        return needed, steps_of_ranks(lists, tiles)

    return lists.before, *jax.vmap(by_piece)(lists), lists.across


def _kernel(
    *operands: Any,
    product: Product,
    tiles: HiddenTiles,
    is_turned: bool,
    has_bias: bool,
    n_shares: int,
    **memory: Any,
) -> None:
    n = len(_TABLES)
    x, dy, w1, w2, *rest = operands[2 * n :]
    bias = rest.pop(0) if has_bias else None
    units, gradient = rest
    tile, own_share = launch.place(n_shares, tiles.cluster)

    def share(tables: dict[str, Any]) -> Share:
        row = warpgroup.read(tables["which"], 0)
        return Share(
            **{name: warpgroup.Table(tables[name], row) for name in _TABLES[1:]},
            ends=None,
            tiles=tiles,
            n_columns=product.n_lines,
            number=own_share,
            n_shares=n_shares,
        )

    def own_memory(panel: str, number: int) -> Memory:
        ring, staging = f"ring{number}", f"staging{number}"
        names = panel, ring, staging, f"{panel}_full", "panel_free", f"{ring}_full", f"{ring}_free"
        return Memory(*map(memory.get, names))

    def program(number: int, panel: str, own: dict[str, Any]) -> dict[str, Any]:
        tables = dict(zip(_TABLES, operands[(number - 1) * n :], strict=False))
        return {
            "share": share(tables),
            "memory": own_memory(panel if tiles.pieces == 1 else "panel", number),
            "first_row": tile * tiles.rows,
            "width": product.width,
            "depth": product.depth,
            "with_gelu": False,
            **own,
        }

    first = {"x": x, "kernel": w1, "bias": bias, "y": units, "turned": is_turned}
    second = {"x": dy, "kernel": w2, "bias": None, "y": gradient, "turned": True}
    programs = program(1, "panel_x", first), program(2, "panel_dy", second)
    copies = hidden_program.Copying(*(product_copies.Copying(**own) for own in programs))
    sums = hidden_program.Summing(*(product_sums.Summing(**own) for own in programs))
    launch.specialise(tiles.n_compute, copies.copy, sums.multiply)
