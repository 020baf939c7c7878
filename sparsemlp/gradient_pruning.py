"""Structured pruning of an output gradient, n of m, for the product that gives dX.

McDanel, Dinh, Magallanes: "Accelerating DNN Training with Structured Data Gradient Pruning" (SDGP).
"""

import itertools
import math
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from pallas_kernels import Engine, Neighbours, Reference, dense
from pallas_kernels.neighbours import keep_largest, largest
from sparsemlp.errors import InputError
from sparsemlp.rules import GradientPruning
from sparsemlp.varying import draw_part

MOST_CHOICES = 1 << 14
"""Of which one is drawn by a single number, for as many neighbouring groups as have no more; 8:16
has 12,870. Of more every entry gets a number. Pruning 128x64x256 entries 2:4 and 4:8 takes 0.09 and
0.08 of the time that numbers for all entries take (2 cores of an Intel Xeon, JAX 0.12.0.1, medians
of 7 turns)."""
_REFERENCE = Reference()


def prune_gradient(
    dy: Float[Array, "..."],
    rule: GradientPruning,
    engine: Engine = _REFERENCE,
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
      engine: who finds the largest along the last two axes; XLA along others.
      axis: the axis of the groups; m divides its length.
      rng: key of the draw; the method `random` alone needs one.

    Returns:
      The same shape and dtype.

    Raises:
      InputError: m does not divide the axis, or the method is `random` and rng is no key.
    """
    check_groups(rule, dy.shape[axis])
    key = key_of(rule, rng)
    if rule.method == "random" and key is None:
        raise _key_error("has no key")
    if rule.n == rule.m:
        return dy
    if rule.method != "random":
        if axis not in (-1, -2):
            return keep_largest(dy, _neighbours(rule), axis)
        return engine.keep_largest(dy, _neighbours(rule), axis)
    assert key is not None
    return jnp.where(_drawn(key, rule, dy, axis % dy.ndim), dy, jnp.zeros_like(dy))


def _drawn(
    key: PRNGKeyArray, rule: GradientPruning, dy: Float[Array, "..."], axis: int
) -> Bool[Array, "..."]:
    """True for n of each group, every choice as likely as any other to 4 parts in a million."""

    def bits(shape: tuple[int, ...]) -> Array:
        return draw_part(lambda whole: jax.random.bits(key, whole, jnp.uint32), shape, dy)

    shape, n_groups = dy.shape, dy.shape[axis] // rule.m
    together = _groups_together(rule, n_groups)
    if not together:
        return largest(bits(shape), rule.n, rule.m, axis)
    of_group = [sum(1 << i for i in kept) for kept in itertools.combinations(range(rule.m), rule.n)]
    choices = [
        sum(kept << (i * rule.m) for i, kept in enumerate(each))
        for each in itertools.product(of_group, repeat=together)
    ]
    before, after = (*shape[:axis], n_groups // together), shape[axis + 1 :]
    drawn = jnp.asarray(choices, jnp.uint32)[bits((*before, *after)) % jnp.uint32(len(choices))]
    places = jax.lax.broadcasted_iota(jnp.uint32, (*before, together * rule.m, *after), axis + 1)
    return ((jnp.expand_dims(drawn, axis + 1) >> places) & 1).astype(bool).reshape(shape)


def _groups_together(rule: GradientPruning, n_groups: int) -> int:
    """How many neighbouring groups one number is drawn for; 0 if each entry needs one."""
    of_group = math.comb(rule.m, rule.n)
    able = (
        count
        for count in range(1, 32 // rule.m + 1)
        if n_groups % count == 0 and of_group**count <= MOST_CHOICES
    )
    return max(able, default=0)


def key_of(rule: GradientPruning | None, rng: object) -> PRNGKeyArray | None:
    """The key that a rule draws with; None if it draws nothing, or was given none.

    Raises:
      InputError: the rule draws, and it is no key.
    """
    if rule is None or rule.method != "random" or rng is None:
        return None
    try:
        is_one = jax.random.key_data(cast(Any, rng)).ndim == 1
    except (TypeError, ValueError):
        is_one = False
    if not is_one:
        raise _key_error(f"rng={rng!r} is no key")
    return cast(PRNGKeyArray, rng)


def _key_error(lacking: str) -> InputError:
    return InputError(
        f"gradient method 'random' draws at random and {lacking}: pass rng=jax.random.key(...) to "
        "sparse_linear, or the random stream 'gradient' to a module's apply"
    )


def pruned_input_gradient(
    dy: Float[Array, "..."],
    kernel: Float[Array, "in out"],
    rule: GradientPruning,
    engine: Engine,
    *,
    axis: Literal[-1, -2] = -1,
    rng: PRNGKeyArray | None = None,
) -> Float[Array, "..."]:
    """`dX = dY' W^T` over a contracted axis, dY' being what `prune_gradient` makes of dY.

    Args:
      dy: `[..., out]`, or `[..., out, channels]` with `axis = -2`.
      kernel: the whole kernel.
      rule: what is kept.
      engine: who takes the largest and multiplies them. What is drawn by the method `random` is
        multiplied by XLA.
      axis: the axis that the layer contracts.
      rng: key of the draw.

    Raises:
      InputError: as `prune_gradient`.
    """
    if rule.method == "random" or rule.n == rule.m:
        return dense.input_gradient(prune_gradient(dy, rule, axis=axis, rng=rng), kernel, axis)
    check_groups(rule, dy.shape[axis])
    return engine.pruned_input_gradient(dy, kernel, _neighbours(rule), axis)


def check_groups(rule: GradientPruning, channels: int) -> None:
    """Raises InputError unless the groups of a rule divide an axis of that length."""
    if channels % rule.m:
        divisors = [m for m in range(rule.n, rule.MOST + 1) if channels % m == 0]
        way_out = f"m may be {', '.join(map(str, divisors))}" if divisors else "choose a smaller n"
        raise InputError(
            f"gradient rule {rule.n}:{rule.m} does not divide the {channels} entries that it "
            f"groups: {channels} % {rule.m} = {channels % rule.m}; {way_out}"
        )


def _neighbours(rule: GradientPruning) -> Neighbours:
    return Neighbours(rule.n, rule.m, rule.method == "rescaled")
