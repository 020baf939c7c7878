"""What is kept of an activation for the backward pass, and the kernel's gradient from it.

The forward product is exact; of x only a compact copy survives to `dW = x^T dy`: its largest blocks
(Barley & Fröning, arXiv 2311.16883) or the means of its windows (arXiv 2409.11902).
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from pallas_kernels import Engine, Reference, dense
from pallas_kernels.layout import spread_activation, take_blocks
from sparsemlp.blocks import n_kept_blocks
from sparsemlp.errors import InputError
from sparsemlp.ranking import largest
from sparsemlp.rules import ActivationPooling, ActivationPruning
from sparsemlp.selection import scores_of

Axis = Literal[-1, -2]
_REFERENCE = Reference()

_FEW = 16
"""Terms of a sum that is written out."""

_NAME = "compact_activation"
"""How `jax.checkpoint` knows what is kept of an activation."""


def keep_only_compact[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """A function of which the backward pass keeps its inputs and compact activations alone.

    All else is computed again from the inputs when it is needed: what elementwise functions would
    keep of dense activations, such as the pre-activation of a GELU, costs its product once more.
    """
    policy = jax.checkpoint_policies.save_only_these_names(_NAME)
    return jax.checkpoint(function, policy=policy)


def named(a: Float[Array, "..."] | Int[Array, "..."]) -> Array:
    """An array that `keep_only_compact` keeps."""
    return checkpoint_name(a, _NAME)


class CompactActivation(abc.ABC):
    """What is left of an activation; a pytree of the arrays that are kept."""

    @abc.abstractmethod
    def kernel_gradient(self, dy: Float[Array, "..."], engine: Engine) -> Float[Array, "in out"]:
        """`dW = x^T dy` with what was kept in the place of x, along the axis of the layer.

        Args:
          dy: the gradient of the layer's output.
          engine: who computes it, where engines differ.
        """


def compact(
    x: Float[Array, "..."],
    rule: ActivationPruning | ActivationPooling,
    axis: Axis,
    engine: Engine = _REFERENCE,
) -> CompactActivation | None:
    """Keeps of an activation what its rule says.

    Args:
      x: `[..., in]`, or `[..., in, channels]` with `axis = -2`.
      rule: what is kept.
      axis: the axis that the layer contracts.
      engine: who finds the largest blocks.

    Returns:
      What is kept, or None where the rule drops nothing: ratio 0, windows of one.

    Raises:
      InputError: a block or window that does not divide x.
    """
    check_activation(rule, x.shape, axis)
    if isinstance(rule, ActivationPooling):
        return None if rule.window == (1, 1) else _pool(x, rule, axis)
    n_blocks = x.size // math.prod(rule.block)
    k = n_kept_blocks(n_blocks, rule.ratio)
    return None if k == n_blocks else _prune(x, rule, k, axis, engine)


def check_activation(
    rule: ActivationPruning | ActivationPooling, shape: tuple[int, ...], axis: Axis
) -> None:
    """Raises InputError unless the blocks or windows of a rule divide an activation."""
    if isinstance(rule, ActivationPruning):
        n_in = shape[axis]
        n_rows = math.prod(shape) // max(1, n_in)
        sides = (("rows (batch x the other axes)", n_rows), ("features", n_in))
        if axis == -2:
            sides = (("rows (batch x channels)", n_rows), ("tokens", n_in))
        check_sides("activation block", rule.block, sides)
        return
    if len(shape) < 2 or (len(shape) == 2 and axis == -1):
        if rule.window[0] > 1:
            raise InputError(
                f"activation of shape {shape} has no tokens to pool {rule.window[0]} of: "
                "choose a window (1, FEATURES)"
            )
        shape = (1, *shape)
    check_sides("pooling window", rule.window, (("tokens", shape[-2]), ("features", shape[-1])))


def check_sides(
    what: str, block: tuple[int, int], sides: tuple[tuple[str, int], tuple[str, int]]
) -> None:
    """Raises InputError unless a block or window, called `what`, divides two named lengths."""
    for size, (name, length) in zip(block, sides, strict=True):
        if length % size:
            below = max(d for d in range(1, size) if length % d == 0)
            raise InputError(
                f"{what} {block[0]}x{block[1]} does not divide the activation: {length} {name} % "
                f"{size} = {length % size}; the next smaller side that does is {below}"
            )


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("values", "ids"), meta_fields=("shape", "axis")
)
@dataclasses.dataclass(frozen=True)
class PrunedActivation(CompactActivation):
    """The largest blocks of an activation, in block sparse row order (BSR).

    Attributes:
      values: `[k, rows, cols]`, the kept blocks.
      ids: int32 `[k]`, where they stand: flat, ascending, row-major over the block grid.
      shape: of the activation.
      axis: the axis that the layer contracts: columns of blocks run along it, rows over all others
        flattened in their order.
    """

    values: Any
    ids: Any
    shape: tuple[int, ...]
    axis: Axis

    def dense(self) -> Float[Array, "..."]:
        """The activation in its own shape, zero where blocks were dropped."""
        return spread_activation(self.values, self.ids, self.shape, self.axis)

    def kernel_gradient(self, dy: Float[Array, "..."], engine: Engine) -> Float[Array, "in out"]:
        """From the kept blocks alone, where the engine can."""
        return engine.compact_gradient(self.values, self.ids, dy, self.shape[self.axis], self.axis)


def _prune(
    x: Array, rule: ActivationPruning, k: int, axis: Axis, engine: Engine
) -> PrunedActivation:
    if rule.score == "l2" and (found := engine.largest_blocks(x, rule.block, k, axis)) is not None:
        return PrunedActivation(named(found[0]), named(found[1]), x.shape, axis)
    height, width = rule.block
    rows = jnp.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
    down, across = rows.shape[0] // height, rows.shape[1] // width
    blocks = rows.reshape(down, height, across, width).swapaxes(1, 2).astype(jnp.float32)
    ids = largest(scores_of(blocks, rule.score).reshape(-1), k)
    values = take_blocks(rows, ids, rule.block)
    return PrunedActivation(named(values), named(ids), x.shape, axis)


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("means",), meta_fields=("window", "axis")
)
@dataclasses.dataclass(frozen=True)
class PooledActivation(CompactActivation):
    """The means of the windows of an activation.

    Attributes:
      means: `[..., tokens / a, features / b]`.
      window: `(a, b)`.
      axis: the axis that the layer contracts.
    """

    means: Any
    window: tuple[int, int]
    axis: Axis

    def kernel_gradient(self, dy: Float[Array, "..."], engine: Engine) -> Float[Array, "in out"]:
        """What spreading the means back over their windows gives, without spreading them.

        Every row of a window meets the same mean, so dy is summed over the window first; and all
        inputs of a window get the same gradient.
        """
        del engine
        tokens, features = self.window
        if self.axis == -1:
            dw = dense.kernel_gradient(self.means, sum_windows(dy, -2, tokens), -1)
            return jnp.repeat(dw, features, axis=0)
        dw = dense.kernel_gradient(self.means, sum_windows(dy, -1, features), -2)
        return jnp.repeat(dw, tokens, axis=0)


def _pool(x: Array, rule: ActivationPooling, axis: Axis) -> PooledActivation:
    tokens, features = rule.window
    wide = x.astype(dense.sum_dtype(x))
    sums = sum_windows(sum_windows(wide, -1, features), -2, tokens)
    means = sums / jnp.asarray(tokens * features, sums.dtype)
    return PooledActivation(named(means.astype(x.dtype)), rule.window, axis)


def sum_windows(a: Array, axis: int, size: int) -> Array:
    """Sums of `size` neighbours along an axis, in float32 at least."""
    if size == 1:
        return a
    place = a.ndim + axis
    shape = (*a.shape[:place], a.shape[place] // size, size, *a.shape[place + 1 :])
    windows = a.reshape(shape).astype(dense.sum_dtype(a))
    if size > _FEW:
        return jnp.sum(windows, axis=place + 1).astype(a.dtype)
    # XLA for CPUs adds up neighbours in memory one by one, these in vectors.
    terms = (jax.lax.index_in_dim(windows, i, axis=place + 1, keepdims=False) for i in range(size))
    return functools.reduce(jnp.add, terms).astype(a.dtype)
