"""The n largest of every m neighbours of a gradient, the others zero, by XLA."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """What is kept of every group of neighbours.

    Attributes:
      n: how many are kept.
      m: the size of a group.
      rescaled: whether what is kept is multiplied by `sum |dy| / sum |kept|`.
    """

    n: int
    m: int
    rescaled: bool = False


def keep_largest(dy: Float[Array, "..."], kept: Neighbours, axis: int) -> Float[Array, "..."]:
    """Keeps the n largest magnitudes of every m neighbours along an axis; zeros for the others.

    Among equal magnitudes the lower index is kept; NaN counts as infinite. The sums of `rescaled`
    are those of each first index (sample) and each index of `axis`, in float32; where nothing of a
    sum is kept, the factor is 1.

    Args:
      dy: any shape whose `axis` m divides.
      kept: what is kept.
      axis: the axis of the groups.
    """
    axis %= dy.ndim
    ranking = jnp.where(jnp.isnan(dy), jnp.asarray(jnp.inf, dy.dtype), jnp.abs(dy))
    pruned = jnp.where(largest(ranking, kept.n, kept.m, axis), dy, jnp.zeros_like(dy))
    return pruned * rescaling(dy, pruned, axis) if kept.rescaled else pruned


def largest(ranking: Array, n: int, m: int, axis: int) -> Bool[Array, "..."]:
    """True for the n largest of each group: those that fewer than n others come before."""
    axis %= ranking.ndim
    shape = ranking.shape
    groups = ranking.reshape(*shape[:axis], shape[axis] // m, m, *shape[axis + 1 :])
    index = jax.lax.broadcasted_iota(jnp.int32, groups.shape, axis + 1)
    before = jnp.zeros(groups.shape, jnp.int32)
    for j in range(m):
        other = jax.lax.slice_in_dim(groups, j, j + 1, axis=axis + 1)
        first = (other > groups) | ((other == groups) & (j < index))
        before = before + first.astype(jnp.int32)
    return (before < n).reshape(shape)


def rescaling(dy: Float[Array, "..."], kept: Float[Array, "..."], axis: int) -> Array:
    """By what `rescaled` multiplies: an entry each for the first axis and for `axis`.

    Args:
      dy: any shape.
      kept: dy with zeros for what is dropped.
      axis: the axis of the groups.

    Returns:
      The dtype of dy; length 1 along all other axes.
    """
    axis %= dy.ndim
    positions = tuple(i for i in range(dy.ndim) if i not in (0, axis))

    def total(a: Array) -> Array:
        return jnp.sum(jnp.abs(a), axis=positions, keepdims=True, dtype=jnp.float32)

    whole, part = total(dy), total(kept)
    one = jnp.ones_like(part)
    factor = jnp.where(part > 0, whole / jnp.where(part > 0, part, one), one)
    # Beyond what float16 holds it would turn the zeros that it multiplies into NaN.
    return jnp.minimum(factor, float(jnp.finfo(dy.dtype).max)).astype(dy.dtype)
