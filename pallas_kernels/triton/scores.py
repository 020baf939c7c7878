"""The norm of every block of a kernel, from one pass over the weights.

A program owns one row of blocks and some outputs, a few blocks wide. It adds the squares or the
sizes of the weights up over its inputs, a chunk at a time, then over the outputs of each block.
Weights are read once, whole lines at a time, and nothing but the norms is written.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.triton.launch import (
    Tiles,
    indices,
    launch,
    load,
    store,
)

TILES = Tiles(rows=16, warps=4, stages=2)
"""`rows` are inputs added up at a time: not tuned yet."""
OUTPUTS = 128
"""Outputs of one program at least: not tuned yet. It holds two blocks: Triton fails at one."""
LARGEST_SIDE = 128
SCORES = ("l1", "l2")
"""What a program can compute: `spectral` needs eigenvalues."""


def takes(block: tuple[int, int]) -> bool:
    """Whether there is a kernel for such blocks, whose sides are powers of two."""
    return all(side <= LARGEST_SIDE and side & (side - 1) == 0 for side in block)


def block_scores(
    kernel: Float[Array, "in out"],
    block: tuple[int, int],
    score: str,
    *,
    interpret: bool,
    tiles: Tiles = TILES,
) -> Float[Array, "down across"]:
    """The score of each block, float32 `[in / cols, out / rows]`.

    Args:
      kernel: `[in, out]`, any float dtype.
      block: `(rows, cols)`, rows over outputs.
      score: `l1` or `l2`.
      interpret: whether the kernel is interpreted.
      tiles: how it is cut; `rows` divides the inputs of a block or is larger.
    """
    (n_in, n_out), (rows, cols) = kernel.shape, block
    outputs = max(OUTPUTS, 2 * rows)
    across = n_out // rows
    return launch(
        "sparsemlp_scores",
        functools.partial(
            _kernel, score=score, n_out=n_out, across=across, chunk=min(cols, tiles.rows)
        ),
        [kernel],
        grid=(pl.cdiv(n_out, outputs), n_in // cols),
        in_specs=[pl.BlockSpec((cols, outputs), lambda tile, down: (down, tile))],
        out_spec=pl.BlockSpec((None, outputs // rows), lambda tile, down: (down, tile)),
        out=jax.ShapeDtypeStruct((n_in // cols, across), jnp.float32),
        tiles=tiles,
        interpret=interpret,
    )


def _kernel(weights: Any, scores: Any, *, score: str, n_out: int, across: int, chunk: int) -> None:
    cols, outputs = weights.shape
    n_blocks = scores.shape[0]
    tile = pl.program_id(0)
    exists = tile * outputs + indices(outputs) < n_out
    exists = jnp.broadcast_to(exists[None, :], (chunk, outputs))

    def add(step: Array, total: Array) -> Array:
        part = load(weights.at[pl.ds(step * chunk, chunk), :], exists).astype(jnp.float32)
        return total + (jnp.abs(part) if score == "l1" else part * part)

    total = jnp.zeros((chunk, outputs), jnp.float32)
    total = jnp.sum(jax.lax.fori_loop(0, cols // chunk, add, total), axis=0)
    total = jnp.sum(total.reshape(n_blocks, outputs // n_blocks), axis=1)
    mine = tile * n_blocks + indices(n_blocks) < across
    store(scores.at[:], total if score == "l1" else jnp.sqrt(total), mine)
