"""`dW = (x^T dy) * M`, and db beside it, by programs that all have as much to do.

As `gradient.py`, of which it is another way: there each program has one group of kept blocks, and
where groups and shares of the rows do not fill the device some of it idles. Here one program runs
on each multiprocessor, and writes its sums while it loads what follows
(`balanced_program.py`). On an H200, when all had as many steps, it was up to 1.41 times as fast
with blocks of 64 and 128, but for few of them; as many loads have not been timed.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pallas_kernels.lists import KeptBlocks, listed
from pallas_kernels.mosaic import launch, warpgroup
from pallas_kernels.mosaic.balanced_groups import Groups, table_of
from pallas_kernels.mosaic.balanced_program import Bias, Program
from pallas_kernels.mosaic.balanced_shares import Plan, plan_of, shares_of
from pallas_kernels.mosaic.balanced_sum import sum_balanced
from pallas_kernels.mosaic.balanced_tasks import Columns, Tasks
from pallas_kernels.mosaic.gradient_operands import (
    Cut,
    Operands,
    Ring,
    contiguous,
    cut_of,
    laid_out,
    rings,
)
from pallas_kernels.mosaic.gradient_tiles import COPYING_REGISTERS, ROWS, GradientTiles
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
      tiles: how the product is cut, one of those that are balanced.
      interpret: whether the kernel is interpreted.
    """
    dw, _ = _gradients(x, dy, kept, layer, tiles, with_bias=False, interpret=interpret)
    return dw


@functools.partial(jax.jit, static_argnames=("layer", "tiles", "interpret"))
def parameter_gradients(
    x: Float[Array, "rows in"],
    dy: Float[Array, "rows out"],
    kept: KeptBlocks,
    layer: SparseLayer,
    tiles: GradientTiles,
    *,
    interpret: bool,
) -> tuple[Float[Array, "in out"], Float[Array, " out"]]:
    """`dW` as `kernel_gradient`, and `db`, dy summed over its rows: float32 as TF32."""
    dw, db = _gradients(x, dy, kept, layer, tiles, with_bias=True, interpret=interpret)
    assert db is not None
    return dw, db.astype(dy.dtype)


def _gradients(
    x: Array,
    dy: Array,
    kept: KeptBlocks,
    layer: SparseLayer,
    tiles: GradientTiles,
    *,
    with_bias: bool,
    interpret: bool,
) -> tuple[Array, Array | None]:
    """`dW`, and `db` in float32 or None."""
    n_out, rows = layer.kernel_shape[1], layer.block[0]
    blocks = listed(kept, layer.grid_shape)
    lists, columns = blocks.rows if tiles.by_rows else blocks.columns, blocks.columns
    cut, plan = cut_of(layer, tiles), plan_of(layer, x.shape[0], tiles)
    before = table_of(blocks, tiles.n_together, by_rows=tiles.by_rows, with_bias=with_bias)
    operands = laid_out(x, dy, cut, by_rows=tiles.by_rows)
    operands = [blocks.which, before, lists.start, lists.across, *operands]
    n_sums = plan.n_places(layer.n_kept) * cut.shape.height
    out = [jax.ShapeDtypeStruct((n_sums, cut.shape.width), jnp.float32)]
    scratch = rings(cut, layer.dtype)
    if cut.shape.height < ROWS:
        staging = cut.n_compute, ROWS, cut.shape.width
        scratch["staging"] = launch.shared(staging, jnp.float32, min(32, cut.shape.width))
    if with_bias:
        # One row of them is enough, and a constant of ones alone XLA would make by a kernel.
        ones = np.zeros((ROWS, cut.depth), x.dtype)
        ones[0] = 1
        operands += [columns.start, columns.across, columns.order, jnp.asarray(ones)]
        n_sums_of_db = plan.n_shares(layer) * n_out // rows * ROWS
        out.append(jax.ShapeDtypeStruct((n_sums_of_db, rows), jnp.float32))
        scratch["ones"] = launch.shared(ones.shape, layer.dtype, contiguous(cut, layer.dtype))
        scratch["ready"] = launch.barriers(1, arrivals=1)
    parts = launch.launch(
        "sparsemlp_balanced_gradient",
        functools.partial(_kernel, cut=cut, plan=plan, by_rows=tiles.by_rows, layer=layer),
        operands,
        grid=(plan.n_programs,),
        out=tuple(out),
        scratch=scratch,
        n_warpgroups=cut.n_compute + 1,
        interpret=interpret,
    )
    return sum_balanced(
        parts, blocks, layer, plan, before, by_rows=tiles.by_rows, interpret=interpret
    )


def _kernel(
    which: Any,
    before: Any,
    start: Any,
    across: Any,
    own_operand: Any,
    shared_operand: Any,
    *rest: Any,
    cut: Cut,
    plan: Plan,
    by_rows: bool,
    layer: SparseLayer,
    own: Any,
    shared: Any,
    full: Any,
    free: Any,
    staging: Any = None,
    ones: Any = None,
    ready: Any = None,
) -> None:
    table = functools.partial(warpgroup.Table, which=warpgroup.read(which, 0))
    *given, dw = rest if ones is None else rest[:-1]
    bias = columns = None
    if ones is not None:
        *lists, of_ones = given
        columns = Columns(*map(table, lists))
        bias = Bias(of_ones, ones, ready, rest[-1], columns.order.size)
    number = jax.lax.axis_index(launch.X)
    shares = shares_of(plan, Groups(table(before), table(start), plan.beside))
    program = Program(
        operands=Operands(cut, Ring(own, shared, full, free), own_operand, shared_operand),
        tasks=Tasks(shares, number, shares.span(number), by_rows, table(across), columns),
        dw=dw,
        n_kept=layer.n_kept,
        staging=staging,
        bias=bias,
    )
    launch.specialise(cut.n_compute, program.copy, program.multiply, COPYING_REGISTERS)
