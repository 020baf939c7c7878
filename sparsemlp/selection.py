"""Dynamic block selection: the k blocks of a kernel with the largest score.

Bespalov 2025 selects by block norm at every forward pass, evaluation included.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sparsemlp.blocks import Block, block_grid, matrix_shape, n_kept_blocks
from sparsemlp.engines import engine_scores
from sparsemlp.errors import InputError, require_known
from sparsemlp.masks import BlockMask, GridMask
from sparsemlp.ranking import largest, one_nan_one_zero
from sparsemlp.varying import refuse_explicit_axes

Score = Callable[[Float[Array, "down across cols rows"]], Float[Array, "down across"]]


def l1(blocks: Float[Array, "down across cols rows"]) -> Float[Array, "down across"]:
    """Sum of the absolute weights of each block."""
    return jnp.sum(jnp.abs(blocks), axis=(-2, -1))


def l2(blocks: Float[Array, "down across cols rows"]) -> Float[Array, "down across"]:
    """Frobenius norm of each block, the norm that the text of Bespalov 2025 states.

    In float32: the squares of weights below 1e-23 or above 2e19 are 0 or infinite.
    """
    return jnp.sqrt(jnp.sum(jnp.square(blocks), axis=(-2, -1)))


def spectral(blocks: Float[Array, "down across cols rows"]) -> Float[Array, "down across"]:
    """Largest singular value of each block, the norm that the code of Bespalov 2025 computes.

    Taken from the eigenvalues of the smaller Gram matrix, which is exact to rounding for the
    largest one and several times cheaper than a singular value decomposition.
    """
    cols, rows = blocks.shape[-2:]
    if min(cols, rows) == 1:
        return l2(blocks)
    gram = "...ij,...ik->...jk" if rows <= cols else "...ji,...ki->...jk"
    squares = jnp.einsum(gram, blocks, blocks, precision="highest")
    return jnp.sqrt(jnp.maximum(jnp.linalg.eigvalsh(squares)[..., -1], 0))


SCORES: dict[str, Score] = {"l2": l2, "spectral": spectral, "l1": l1}

GRADIENT_SCORE = "gradient"
"""The score that needs gradients, so that only a training step can take it (`dynamics`)."""


def check_score(score: str | Score) -> None:
    """Raises InputError unless `score` is a function or the name of a score."""
    if not callable(score):
        require_known(f"score {score!r}", score, (*SCORES, GRADIENT_SCORE))


def select_blocks(
    kernel: Float[Array, "*window in out"],
    block: Block,
    ratio: float,
    score: str | Score = "l2",
    name: str = "kernel",
    engine: str = "auto",
) -> BlockMask:
    """Keeps the `k = ceil(n * (1 - ratio))` blocks with the largest score.

    Jittable; `block`, `ratio` and `score` are static. Ties keep the block with the lower flat
    index, so exactly k blocks are kept. No gradient flows through the selection.

    Args:
      kernel: `[in, out]`, any float dtype; scores are taken in float32. A convolution's
        `[down, across, in, out]` counts as the matrix `[down * across * in, out]`.
      block: `(rows, cols)`, rows over outputs, columns over inputs.
      ratio: fraction of blocks to drop, in `[0, 1)`.
      score: a name in `SCORES`, or a function from blocks `[in / cols, out / rows, cols, rows]`
        to scores `[in / cols, out / rows]`.
      name: what to call the kernel in an error.
      engine: who scores the blocks, as in `block_scores`.

    Returns:
      The mask of the kernel, with `k` kept blocks.

    Raises:
      InputError: the block does not divide the kernel, the ratio is outside `[0, 1)`, the score
        is unknown, or the kernel is none or sharded over explicit axes of a mesh.
    """
    check_score(score)
    kernel = _checked(kernel, name)
    kernel_shape = matrix_shape(kernel.shape)
    down, across = block_grid(kernel_shape, block, name)
    n_blocks = down * across
    k = n_kept_blocks(n_blocks, ratio)
    if k == n_blocks:
        return BlockMask(jnp.arange(n_blocks, dtype=jnp.int32), kernel_shape, block)
    scores = block_scores(kernel, block, score, name, engine)
    return BlockMask(largest(scores.reshape(n_blocks), k), kernel_shape, block)


def select_grid(
    kernel: Float[Array, "*window in out"],
    block: Block,
    k: Int[Array, ""] | int,
    score: str | Score = "l2",
    name: str = "kernel",
) -> GridMask:
    """Keeps the k blocks with the largest score, where k is data: one program serves all ratios.

    With `k = n_kept_blocks(n, ratio)` the same blocks as `select_blocks`, ties included.

    Args:
      kernel: as for `select_blocks`.
      block: as for `select_blocks`.
      k: how many blocks to keep, an integer scalar, traced or not; all if there are no more.
      score: as for `select_blocks`.
      name: what to call the kernel in an error.

    Returns:
      The mask of the kernel, with k kept blocks.

    Raises:
      InputError: as `select_blocks`, or k is no integer.
    """
    check_score(score)
    kernel = _checked(kernel, name)
    if jnp.shape(k) or not jnp.issubdtype(jnp.result_type(k), jnp.integer):
        raise InputError(
            f"k of {name} is {jnp.result_type(k)} {jnp.shape(k)}: give one integer, as "
            "n_kept_blocks does"
        )
    scores = block_scores(kernel, block, score, name)
    _, ids = jax.lax.top_k(one_nan_one_zero(scores.reshape(-1)), scores.size)
    chosen = jnp.arange(scores.size, dtype=jnp.int32) < k
    kept = jnp.zeros(scores.size, bool).at[ids].set(chosen, unique_indices=True)
    return GridMask(kept.reshape(scores.shape), matrix_shape(kernel.shape), block)


def _checked(kernel: Any, name: str) -> Array:
    """A kernel that blocks are selected of."""
    kernel = jnp.asarray(kernel)
    refuse_explicit_axes(kernel)
    if kernel.ndim not in (2, 4):
        raise InputError(
            f"{name} of shape {kernel.shape} is neither [in, out] nor [down, across, in, out]: of "
            "stacked kernels select blocks with jax.vmap"
        )
    return kernel


def block_scores(
    kernel: Float[Array, "*window in out"],
    block: Block,
    score: str | Score = "l2",
    name: str = "kernel",
    engine: str = "auto",
) -> Float[Array, "down across"]:
    """The score of every block of a kernel, float32 `[in / cols, out / rows]`, without gradient.

    Args:
      kernel: as for `select_blocks`.
      block: `(rows, cols)`.
      score: a name in `SCORES`, or a function.
      name: what to call the kernel in an error.
      engine: `auto`, or a name in `pallas_kernels.ENGINES`: where that engine has a kernel for
        this score it is used, else XLA. They differ by rounding.

    Raises:
      InputError: the block does not divide the kernel, the score needs gradients, a function does
        not give one for each block, or the kernel is sharded over explicit axes of a mesh.
    """
    if score == GRADIENT_SCORE:
        raise InputError(
            f"score {score!r} ranks blocks by weight times gradient, which only a training step "
            f"knows: select_dynamic_masks does it; or choose one of {', '.join(SCORES)}"
        )
    refuse_explicit_axes(kernel)
    if not callable(score):
        shape = matrix_shape(kernel.shape)
        block_grid(shape, block, name)
        matrix = jax.lax.stop_gradient(kernel).reshape(shape)
        found = engine_scores(engine, matrix, block, score)
        if found is not None:
            return found
    return scores_of(cut(kernel.astype(jnp.float32), block, name), score)


def scores_of(
    blocks: Float[Array, "down across height width"], score: str | Score
) -> Float[Array, "down across"]:
    """The scores of blocks by a function or its name, float32, without gradient.

    Raises:
      InputError: the function does not return one score for each block.
    """
    function = score if callable(score) else SCORES[score]
    scores = jnp.asarray(function(jax.lax.stop_gradient(blocks)), jnp.float32)
    scores = jax.lax.stop_gradient(scores)
    if scores.shape != blocks.shape[:2]:
        raise InputError(
            f"a score gives {scores.shape} for blocks {blocks.shape}: it must give one number for "
            f"each block, {blocks.shape[:2]}"
        )
    return scores


def cut(
    kernel: Float[Array, "*window in out"], block: Block, name: str = "kernel"
) -> Float[Array, "down across cols rows"]:
    """The blocks of a kernel, `[in / cols, out / rows, cols, rows]`.

    Raises:
      InputError: the block does not divide the kernel.
    """
    down, across = block_grid(matrix_shape(kernel.shape), block, name)
    rows, cols = block
    return kernel.reshape(down, cols, across, rows).swapaxes(1, 2)
