"""What dropped weights and those that return undergo: SR-STE's decay, moments that are reset."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from pallas_kernels.layout import dense_mask
from sparsemlp.mask_trees import Masks, flatten_masks
from sparsemlp.planned_kernels import path_of


def decay_dropped(
    gradients: Mapping[str, Any],
    params: Mapping[str, Any],
    masks: Masks,
    factor: float | Float[Array, ""],
) -> Any:
    """The gradients with `factor * weight` added for every dropped weight, SR-STE's decay."""
    if isinstance(factor, int | float) and not factor:
        return gradients
    found = flatten_masks(masks)

    def decay(path: Any, gradient: Array, weight: Array) -> Array:
        mask = found.get(path_of(path))
        if mask is None:
            return gradient
        dropped = ~mask.dense().reshape(weight.shape)
        return gradient + jnp.where(dropped, factor * weight, jnp.zeros_like(weight))

    return jax.tree.map_with_path(decay, gradients, params)


def reset_returned(
    optimizer: optax.GradientTransformation,
    state: optax.OptState,
    params: Mapping[str, Any],
    masks: Masks,
    kept_before: Mapping[str, Bool[Array, " n"]],
) -> optax.OptState:
    """The optimizer's state with zero moments in the blocks that are kept anew.

    What has another shape than its parameter stays as it is, as Adafactor's factored moments; and
    so does what `optax.masked` or `optax.multi_transform` leave out.

    Args:
      optimizer: the transformation whose state it is.
      state: the state.
      params: the parameters.
      masks: masks of this step.
      kept_before: for each masked kernel the blocks that the step before kept.
    """
    found = flatten_masks(masks)

    def stays(path: Any, weight: Array) -> Array:
        name = path_of(path)
        if name not in found:
            return jnp.bool_(True)
        mask = found[name]
        returned = mask.grid() & ~kept_before[name].reshape(mask.grid_shape)
        spread = dense_mask(returned, mask.kernel_shape, mask.block)
        return (~spread).reshape(weight.shape)

    def reset(moment: Any, stays: Array) -> Any:
        if _is_left_out(moment) or stays.shape not in ((), moment.shape):
            return moment
        return jnp.where(stays, moment, jnp.zeros_like(moment))

    return optax.tree_utils.tree_map_params(
        optimizer, reset, state, jax.tree.map_with_path(stays, params), is_leaf=_is_left_out
    )


def _is_left_out(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)
