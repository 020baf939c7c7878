"""Masks of a model: selected by the plan, as a tree like the parameters, and by path."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from sparsemlp.blocks import matrix_shape, n_kept_blocks
from sparsemlp.masks import BlockMask, Mask
from sparsemlp.plan import Plan, block_counts, masked_kernels, path_of
from sparsemlp.rules import BlockMasking
from sparsemlp.selection import select_blocks

Masks = dict[str, Any]
"""Nested dictionaries like the parameters, cut down to masked kernels; leaves are masks."""

Select = Callable[[str, Any, BlockMasking], Mask]
"""What selects the blocks of a kernel, from its path, its weights and its rule."""


def select_masks(
    params: Mapping[str, Any], plan: Plan, engine: str = "auto", *, select: Select | None = None
) -> Masks:
    """Selects the kept blocks of every masked kernel anew.

    Jittable, with the plan static: one compilation serves all steps.

    Args:
      params: nested mapping of arrays, kernels `[in, out]` or `[down, across, in, out]`.
      plan: which parameter gets which rules.
      engine: who scores the blocks, as `selection.block_scores`.
      select: what selects the blocks of a kernel instead of `select_blocks`.

    Returns:
      The variable collection `masks`: the same tree as the masked part of `params`, empty when
      nothing is masked (no plan, or ratio 0).

    Raises:
      InputError: as `plan.check_plan`.
    """
    return mask_tree(
        {
            path: select_blocks(kernel, rule.block, rule.ratio, rule.score, path, engine)
            if select is None
            else select(path, kernel, rule)
            for path, kernel, rule in masked_kernels(params, plan)
        }
    )


def mask_shapes(params: Mapping[str, Any], plan: Plan) -> dict[str, BlockMask]:
    """The masks by parameter path without their positions: `kept` is a `jax.ShapeDtypeStruct`.

    Args:
      params: nested mapping of arrays or `jax.ShapeDtypeStruct`.
      plan: which parameter gets which rules.

    Raises:
      InputError: as `plan.check_plan`.
    """
    n_blocks = block_counts(params, plan)
    return {
        path: BlockMask(
            jax.ShapeDtypeStruct((n_kept_blocks(n_blocks[path], rule.ratio),), jnp.int32),
            matrix_shape(kernel.shape),
            rule.block,
        )
        for path, kernel, rule in masked_kernels(params, plan)
    }


def mask_tree(masks: Mapping[str, Mask]) -> Masks:
    """The variable collection `masks` from masks by parameter path."""
    tree: Masks = {}
    for path, mask in masks.items():
        *parents, last = path.split("/")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = mask
    return tree


def flatten_masks(masks: Masks) -> dict[str, Any]:
    """The masks by parameter path, as `block_0/XPatch/kernel`, in the order of the tree."""
    leaves = jax.tree.leaves_with_path(masks, is_leaf=lambda node: isinstance(node, Mask))
    return {"/".join(path_of(path)): mask for path, mask in leaves}
