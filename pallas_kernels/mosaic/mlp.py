"""`y = gelu(x (W1 * M1) + b1) (W2 * M2) + b2`, and x on top, without hidden units in memory.

Here the pair is cut and launched; `mlp_program` tells what runs on the GPU.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.lists import listed
from pallas_kernels.mosaic import launch, mlp_program, product_copies, product_sums, warpgroup
from pallas_kernels.mosaic.mlp_tiles import MlpTiles, Pair, pair_of
from pallas_kernels.mosaic.product_program import Memory
from pallas_kernels.mosaic.product_share import Share
from pallas_kernels.mosaic.product_tiles import ROWS, Product, longest_abreast, steps_of_ranks
from pallas_kernels.sparse_layer import SparseLayer, Weights


@functools.partial(jax.jit, static_argnames=("layers", "tiles", "residual", "interpret"))
def mlp(
    x: Float[Array, "rows n"],
    weights: tuple[Weights, Weights],
    layers: tuple[SparseLayer, SparseLayer],
    tiles: MlpTiles,
    *,
    residual: bool,
    interpret: bool,
) -> Float[Array, "rows n"]:
    """The result of both layers. Hidden units that no kept block of W2 uses load no block of W1.

    Args:
      x: `[rows, n]`, not empty.
      weights: of both layers, each of which keeps a block.
      layers: both layers, whose blocks are each other's turned.
      tiles: how the pair is cut.
      residual: whether x is added.
      interpret: whether the kernel is interpreted.
    """
    pair = pair_of(layers, x.shape[0])
    of_first = listed(weights[0].kept, (pair.first.n_blocks, pair.first.n_lines))
    of_second = listed(weights[1].kept, (pair.second.n_blocks, pair.second.n_lines))
    # Units that no kept block of W2 uses have no entries.
    starts, users = of_first.own(of_first.columns.start), of_second.own(of_second.rows.start)
    ends = jnp.where(users[1:] > users[:-1], starts[1:], starts[:-1])
    steps_of = functools.partial(steps_of_ranks, tiles=tiles.second)
    steps2 = jax.vmap(steps_of)(of_second.columns)
    # Tensor cores read float32 along the contracted features alone: XLA transposes both kernels.
    is_wide = jnp.dtype(x.dtype).itemsize == 4
    kernels = [own.kernel.T if is_wide else own.kernel for own in weights]
    biases = [own.bias for own in weights]
    x = launch.padded(x, launch.TILE_ROWS)
    (width, depth), tall = (pair.first.width, pair.first.depth), tiles.first.rows // ROWS
    contiguous = min(32 if is_wide else 64, width, depth)
    ring = (width, depth) if is_wide else (depth, width)

    def shared(*shape: int) -> Any:
        return launch.shared(shape, x.dtype, contiguous)

    full = launch.barriers(tiles.stages, arrivals=tiles.abreast)
    free = launch.barriers(tiles.stages, arrivals=tiles.n_compute, cluster=tiles.cluster)
    y = launch.launch(
        "sparsemlp_mlp",
        functools.partial(
            _kernel,
            pair=pair,
            tiles=tiles,
            turned=is_wide,
            has_bias=[bias is not None for bias in biases],
            residual=residual,
        ),
        [
            of_first.which,
            of_first.columns.across,
            starts[None],
            ends[None],
            longest_abreast((ends - starts[:-1])[:, None], tiles.first)[None],
            of_second.which,
            of_second.columns.before,
            of_second.columns.across,
            steps2,
            x,
            *kernels,
            *(bias for bias in biases if bias is not None),
        ],
        grid=(tiles.first.n_tiles(pair.first) // tiles.cluster,),
        cluster=tiles.cluster,
        out=jax.ShapeDtypeStruct((x.shape[0], pair.second.n_lines * pair.second.width), x.dtype),
        scratch={
            "panel": shared(1, tiles.inputs, tiles.first.rows, depth),
            "hidden": shared(tiles.buffers, tiles.blocks, tall, ROWS, width),
            "ring1": shared(tiles.stages, tiles.abreast, *ring),
            "ring2": shared(tiles.stages, tiles.abreast, *reversed(ring)),
            "staging": shared(tiles.n_compute, ROWS, depth),
            "panel_full": launch.barriers(1, arrivals=tiles.inputs),
            "hidden_full": launch.barriers(tiles.buffers, arrivals=tiles.n_compute),
            "ring1_full": full,
            "ring1_free": free,
            "ring2_full": full,
            "ring2_free": free,
        },
        n_warpgroups=tiles.n_compute + 1,
        interpret=interpret,
    )
    return y[: pair.first.n_rows]


def _kernel(
    which1: Any,
    across1: Any,
    starts1: Any,
    ends1: Any,
    steps1: Any,
    which2: Any,
    before2: Any,
    across2: Any,
    steps2: Any,
    x: Any,
    w1: Any,
    w2: Any,
    *rest: Any,
    pair: Pair,
    tiles: MlpTiles,
    turned: bool,
    has_bias: list[bool],
    residual: bool,
    panel: Any,
    hidden: Any,
    ring1: Any,
    ring2: Any,
    staging: Any,
    panel_full: Any,
    hidden_full: Any,
    **ring: Any,
) -> None:
    *biases, y = rest
    b1, b2 = (biases.pop(0) if has else None for has in has_bias)
    tile, zero = launch.place(1, tiles.cluster)

    def memory(name: str, buffers: Any) -> Memory:
        full, free = ring[f"{name}_full"], ring[f"{name}_free"]
        return Memory(panel, buffers, staging, panel_full, None, full, free)

    def program(product: Product, own: dict[str, Any]) -> dict[str, Any]:
        shared = {"x": x, "y": y, "first_row": tile * tiles.first.rows, "turned": turned}
        return {**shared, "width": product.width, "depth": product.depth, **own}

    table1 = functools.partial(warpgroup.Table, which=warpgroup.read(which1, 0))
    table2 = functools.partial(warpgroup.Table, which=warpgroup.read(which2, 0))
    alone = functools.partial(warpgroup.Table, which=zero)
    share = functools.partial(Share, needed=None, number=zero, n_shares=1)
    first = program(
        pair.first,
        {
            "share": share(
                before=alone(starts1),
                across=table1(across1),
                ends=alone(ends1),
                steps=alone(steps1),
                tiles=tiles.first,
                n_columns=pair.first.n_lines,
            ),
            "memory": memory("ring1", ring1),
            "kernel": w1,
            "bias": b1,
            "with_gelu": True,
        },
    )
    second = program(
        pair.second,
        {
            "share": share(
                before=table2(before2),
                across=table2(across2),
                ends=None,
                steps=table2(steps2),
                tiles=tiles.second,
                n_columns=pair.second.n_lines,
            ),
            "memory": memory("ring2", ring2),
            "kernel": w2,
            "bias": b2,
            "with_gelu": False,
        },
    )
    copying, summing = product_copies.Copying, product_sums.Summing
    copies = mlp_program.Copying(copying(**first), copying(**second), tiles)
    sums = mlp_program.Summing(
        summing(**first), summing(**second), tiles, hidden, hidden_full, residual
    )
    launch.specialise(tiles.n_compute, copies.copy, sums.multiply)
