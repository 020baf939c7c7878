"""Masks of a model: selected by the plan, as a tree like the parameters, and by path."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from jaxtyping import Array

from pallas_kernels.lists import list_alike
from sparsemlp.blocks import format_block, matrix_shape, n_kept_blocks
from sparsemlp.engines import takes_lists
from sparsemlp.errors import InputError
from sparsemlp.mask_check import check_mask
from sparsemlp.masks import BlockMask, Mask
from sparsemlp.plan import Plan
from sparsemlp.planned_kernels import block_counts, masked_kernels, path_of
from sparsemlp.ranking import largest_of_each
from sparsemlp.rules import BlockMasking
from sparsemlp.selection import block_scores

Masks = dict[str, Any]
"""Nested dictionaries like the parameters, cut down to masked kernels; leaves are masks."""

_Kernels = Iterable[tuple[str, Any, BlockMasking]]
"""Path, weights and rule of each masked kernel, as `planned_kernels.masked_kernels`."""


def select_masks(params: Mapping[str, Any], plan: Plan | None, engine: str = "auto") -> Masks:
    """Selects the kept blocks of every masked kernel anew, by the weights alone.

    Jittable, with the plan static: one compilation serves all steps. The training programs select
    by `dynamics.select_dynamic_masks`, which selects the same unless it has to remember steps.

    Args:
      params: nested mapping of arrays, kernels `[in, out]` or `[down, across, in, out]`.
      plan: which parameter gets which rules; None for no rules.
      engine: who scores the blocks, as `selection.block_scores`.

    Returns:
      The variable collection `masks`: the same tree as the masked part of `params`, empty when
      nothing is masked (no plan, or ratio 0); with lists, as `list_masks`.

    Raises:
      InputError: as `planned_kernels.check_plan`.
    """
    kernels = list(masked_kernels(params, plan))
    scores = {
        path: block_scores(kernel, rule.block, rule.score, path, engine).reshape(-1)
        for path, kernel, rule in kernels
    }
    return mask_tree(list_masks(masks_of(kernels, largest_by_rule(kernels, scores)), engine))


def largest_by_rule(kernels: _Kernels, scores: Mapping[str, Array]) -> dict[str, Array]:
    """By path the ids of as many blocks as a kernel's rule keeps, those with the largest scores.

    Args:
      kernels: the masked kernels.
      scores: by path the scores of their blocks, flat.
    """
    n_kept = {path: n_kept_blocks(scores[path].size, rule.ratio) for path, _, rule in kernels}
    return largest_of_each(scores, n_kept)


def masks_of(kernels: _Kernels, kept: Mapping[str, Array]) -> dict[str, Mask]:
    """The masks by parameter path.

    Args:
      kernels: the masked kernels.
      kept: by path the ids of the kept blocks.
    """
    return {
        path: BlockMask(kept[path], matrix_shape(kernel.shape), rule.block)
        for path, kernel, rule in kernels
    }


def list_masks(masks: Mapping[str, Mask], engine: str = "auto") -> dict[str, Mask]:
    """The same masks, with the lists of kept blocks that the products of an engine walk.

    Made here they are made once for the products of a step, and for kernels that are alike
    together: on a GPU, where every small computation is a launch, they take longer than a product
    of a small layer. Engines that do without lists get the masks as they are.

    Args:
      masks: by parameter path.
      engine: who computes the masked products: `auto`, or a name in `pallas_kernels.ENGINES`.

    Raises:
      InputError: the engine does not exist.
    """
    alike: dict[tuple[tuple[int, int], int], dict[str, BlockMask]] = {}
    if takes_lists(engine):
        for path, mask in masks.items():
            if isinstance(mask, BlockMask) and not mask.keeps_all and mask.n_kept:
                alike.setdefault((mask.grid_shape, mask.n_kept), {})[path] = mask
    found = dict(masks)
    for (grid_shape, _), own in alike.items():
        of_all = list_alike(jnp.stack([mask.kept for mask in own.values()]), grid_shape)
        for (path, mask), lists in zip(own.items(), of_all, strict=True):
            found[path] = mask.with_lists(lists)
    return found


def mask_shapes(params: Mapping[str, Any], plan: Plan) -> dict[str, BlockMask]:
    """The masks by parameter path without their positions: `kept` is a `jax.ShapeDtypeStruct`.

    Args:
      params: nested mapping of arrays or `jax.ShapeDtypeStruct`.
      plan: which parameter gets which rules.

    Raises:
      InputError: as `planned_kernels.check_plan`.
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


def check_masks(masks: Masks, params: Mapping[str, Any], plan: Plan) -> None:
    """Checks that masks are those of the kernels that a plan masks: a layer without one is dense.

    Args:
      masks: the variable collection `masks`, as it is given to a model.
      params: nested mapping of arrays or `jax.ShapeDtypeStruct`.
      plan: which parameter gets which rules.

    Raises:
      InputError: as `planned_kernels.check_plan` and `check_mask`; or a kernel that the plan masks
        has no mask, or one of other blocks or of another number of them, or a mask is of no such
        kernel.
    """
    found, wanted = flatten_masks(masks), mask_shapes(params, plan)
    for path in wanted:
        node: Any = masks
        for name in path.split("/"):
            node = node.get(name) if isinstance(node, Mapping) else None
        if isinstance(node, Mapping):
            check_mask(node)  # restored without a target, which is why there is none
    if unknown := sorted(found.keys() - wanted.keys()):
        known = ", ".join(wanted) or "none"
        raise InputError(
            f"masks has one at {unknown[0]}, which the plan does not mask: the masked kernels are "
            f"{known}; masks is a tree like the parameters, as select_masks returns it"
        )
    for path, own in wanted.items():
        mask = found.get(path)
        if mask is None:
            raise InputError(f"masks has none at {path}, which the plan masks: select them anew")
        check_mask(mask)
        fits = (mask.kernel_shape, mask.block) == (own.kernel_shape, own.block)
        if not fits or (isinstance(mask, BlockMask) and mask.n_kept != own.n_kept):
            raise InputError(
                f"the mask at {path}, of {format_block(mask.block)} blocks of a kernel "
                f"{mask.kernel_shape}, is not that of the plan, which keeps {own.n_kept} of "
                f"{own.n_blocks} blocks of {format_block(own.block)}: select it anew"
            )


def mask_tree(masks: Mapping[str, Mask]) -> Masks:
    """The variable collection `masks` from masks by parameter path."""
    return traverse_util.unflatten_dict(dict(masks), sep="/")


def flatten_masks(masks: Masks) -> dict[str, Any]:
    """The masks by parameter path, as `block_0/XPatch/kernel`, in the order of the tree."""
    leaves = jax.tree.leaves_with_path(masks, is_leaf=lambda node: isinstance(node, Mask))
    return {path_of(path): mask for path, mask in leaves}
