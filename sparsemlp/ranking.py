"""Which scores are the largest, exactly and the same on every platform."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

MANY = 2048
"""From so many scores on a processor finds the k-th largest faster than it sorts k. Measured on 2
cores of an AMD EPYC, JAX 0.12.0.1: for ten times 16,384 scores at ratios 0.9 and 0.5 in 0.54 and
0.24 of the time, for ten times 2,048 in 1.0 and 0.38, for ten times 1,024 in 1.6 and 0.48."""
_BITS = 32


def largest(scores: Float[Array, " n"], k: int) -> Int[Array, " k"]:
    """Ids of the k largest scores, ascending, int32 `[k]`; equal scores keep the lower id.

    NaN is the largest of all, so that a loss shows it.

    Args:
      scores: float32.
      k: from 0 to n.
    """
    if k == scores.size:
        return jnp.arange(k, dtype=jnp.int32)
    if scores.size < MANY or k == 0:
        return _by_sorting(scores, k)
    return jax.lax.platform_dependent(
        scores,
        cpu=functools.partial(_by_bisection, k=k),
        default=functools.partial(_by_sorting, k=k),
    )


def largest_of_each(
    scores: Mapping[str, Float[Array, "..."]], k: Mapping[str, int]
) -> dict[str, Array]:
    """`largest` of several kernels; those of equal size and k are ranked together.

    On a GPU every ranking is some launches, longer than the ranking itself.

    Args:
      scores: of the blocks of each kernel.
      k: how many blocks each keeps.
    """
    alike: dict[tuple[int, int], list[str]] = {}
    for path, own in scores.items():
        alike.setdefault((own.size, k[path]), []).append(path)
    kept: dict[str, Array] = {}
    for (_, n_kept), paths in alike.items():
        rows = jax.vmap(functools.partial(largest, k=n_kept))(
            jnp.stack([scores[path] for path in paths])
        )
        kept |= dict(zip(paths, rows, strict=True))
    return {path: kept[path] for path in scores}


# Compiled also where nothing around it is: its NaN is none that `jax_debug_nans` looks for.
@jax.jit
def one_nan_one_zero(scores: Float[Array, " n"]) -> Float[Array, " n"]:
    """The scores with one NaN and one zero: top_k takes those with a minus for smaller ones.

    Told by their bits: processors may compare numbers below 1.2e-38 as zeros.
    """
    size = jax.lax.bitcast_convert_type(scores, jnp.uint32) & jnp.uint32(0x7FFFFFFF)
    scores = jnp.where(size == 0, jnp.zeros_like(scores), scores)
    return jnp.where(size > jnp.uint32(0x7F800000), jnp.full_like(scores, jnp.nan), scores)


def _by_sorting(scores: Float[Array, " n"], k: int) -> Int[Array, " k"]:
    _, ids = jax.lax.top_k(one_nan_one_zero(scores), k)
    return jnp.sort(ids)


def _by_bisection(scores: Float[Array, " n"], k: int) -> Int[Array, " k"]:
    """Finds the k-th largest bit by bit, and of its equals as many as are left."""
    ranks = _in_order(one_nan_one_zero(scores))

    def with_bit(step: Int[Array, ""], found: UInt32[Array, ""]) -> UInt32[Array, ""]:
        more = found | (jnp.uint32(1) << jnp.asarray(_BITS - 1 - step, jnp.uint32))
        return jnp.where(jnp.sum(ranks >= more) >= k, more, found)

    # Zero, but it varies over the axes of a mesh as the scores do.
    kth = jax.lax.fori_loop(0, _BITS, with_bit, ranks[0] & jnp.uint32(0))
    above, equal = ranks > kth, ranks == kth
    kept = above | (equal & (jnp.cumsum(equal) <= k - jnp.sum(above)))
    return _ids_of(kept, k)


def _ids_of(kept: Bool[Array, " n"], k: int) -> Int[Array, " k"]:
    """Where the k kept ones are."""
    places = jnp.where(kept, jnp.cumsum(kept) - 1, k)
    ids = jnp.arange(kept.size, dtype=jnp.int32)
    return jnp.zeros(k, jnp.int32).at[places].set(ids, mode="drop")


def _in_order(scores: Float[Array, " n"]) -> UInt32[Array, " n"]:
    """Integers that order as the scores do, NaN last."""
    bits = jax.lax.bitcast_convert_type(scores, jnp.uint32)
    sign = jnp.uint32(1 << (_BITS - 1))
    return jnp.where(bits & sign, ~bits, bits | sign)
