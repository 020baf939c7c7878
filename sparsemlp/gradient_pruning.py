"""Structured pruning of an output gradient, n of m, for the product that gives dX.

McDanel, Dinh, Magallanes: "Accelerating DNN Training with Structured Data Gradient Pruning" (SDGP).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from sparsemlp.errors import InputError
from sparsemlp.rules import GradientPruning


def prune_gradient(
    dy: Float[Array, "..."],
    rule: GradientPruning,
    *,
    axis: int = -1,
    rng: PRNGKeyArray | None = None,
) -> Float[Array, "..."]:
    """Keeps n of every m neighbours along an axis, and zeros instead of the others.

    Among equal magnitudes the lower index is kept; NaN counts as the largest. `rescaled` multiplies
    what is kept by `sum |dy| / sum |kept|`, sums in float32 over all axes but the first (samples)
    and `axis`: over tokens or pixels, one factor a sample and channel. Where nothing of a sum is
    kept, the factor is 1; nothing is added to the denominator.

    Args:
      dy: `[..., channels]`, or with another `axis` the groups run along that.
      rule: what is kept. n = m returns dy as it is.
      axis: the axis of the groups; m divides its length.
      rng: key of the draw; the method `random` alone needs one.

    Returns:
      The same shape and dtype.

    Raises:
      InputError: m does not divide the axis, or the method is `random` and there is no key.
    """
    check_groups(rule, dy.shape[axis])
    if rule.method == "random" and rng is None:
        raise InputError(
            "gradient method 'random' draws at random and has no key: pass rng=jax.random.key(...) "
            "to sparse_linear, or the random stream 'gradient' to a module's apply"
        )
    if rule.n == rule.m:
        return dy
    axis %= dy.ndim
    if rule.method == "random":
        assert rng is not None
        ranking = jax.random.bits(rng, dy.shape, jnp.uint32)
    else:
        ranking = jnp.where(jnp.isnan(dy), jnp.asarray(jnp.inf, dy.dtype), jnp.abs(dy))
    kept = jnp.where(_largest(ranking, rule, axis), dy, jnp.zeros_like(dy))
    return kept * _factor(dy, kept, axis) if rule.method == "rescaled" else kept


def check_groups(rule: GradientPruning, channels: int) -> None:
    """Raises InputError unless the groups of a rule divide an axis of that length."""
    if channels % rule.m:
        divisors = [m for m in range(rule.n, rule.MOST + 1) if channels % m == 0]
        way_out = f"m may be {', '.join(map(str, divisors))}" if divisors else "choose a smaller n"
        raise InputError(
            f"gradient rule {rule.n}:{rule.m} does not divide the {channels} entries that it "
            f"groups: {channels} % {rule.m} = {channels % rule.m}; {way_out}"
        )


def _largest(ranking: Array, rule: GradientPruning, axis: int) -> Bool[Array, "..."]:
    """True for the n largest of each group: those that fewer than n others come before."""
    shape = ranking.shape
    groups = ranking.reshape(*shape[:axis], -1, rule.m, *shape[axis + 1 :])
    index = jax.lax.broadcasted_iota(jnp.int32, groups.shape, axis + 1)
    before = jnp.zeros(groups.shape, jnp.int32)
    for j in range(rule.m):
        other = jax.lax.slice_in_dim(groups, j, j + 1, axis=axis + 1)
        first = (other > groups) | ((other == groups) & (j < index))
        before = before + first.astype(jnp.int32)
    return (before < rule.n).reshape(shape)


def _factor(dy: Array, kept: Array, axis: int) -> Array:
    positions = tuple(i for i in range(dy.ndim) if i not in (0, axis))

    def total(a: Array) -> Array:
        return jnp.sum(jnp.abs(a), axis=positions, keepdims=True, dtype=jnp.float32)

    whole, part = total(dy), total(kept)
    one = jnp.ones_like(part)
    return jnp.where(part > 0, whole / jnp.where(part > 0, part, one), one).astype(dy.dtype)
