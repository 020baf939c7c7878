"""How the blocks to keep are shared out among the layers."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np

from sparsemlp.blocks import n_kept_blocks
from sparsemlp.errors import InputError, require_known
from sparsemlp.plan import Plan, as_tuple
from sparsemlp.planned_kernels import masked_kernels
from sparsemlp.rules import BlockMasking, Rule
from sparsemlp.selection import block_scores

Budget = Literal["uniform", "erk", "global"]


def check_budget(budget: str) -> Budget:
    """Returns `budget` if it is a way to share out the blocks, raises InputError otherwise."""
    return require_known(f"budget {budget!r}", budget, get_args(Budget))


def erk_densities(shapes: Mapping[str, tuple[int, ...]], density: float) -> dict[str, float]:
    """Densities by Erdős-Rényi-Kernel: small layers keep a larger share than large ones.

    A layer's density is proportional to the sum of its kernel's sides over their product, at most
    1, so that all layers together keep `density` of their weights.

    Args:
      shapes: kernels `(in, out)` or `(height, width, in, out)` by name.
      density: share of all weights that is kept, in `(0, 1]`.

    Returns:
      The density of each layer.

    References:
      Evci et al., Rigging the Lottery, arXiv 1911.11134, section 3, (1)
    """
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    scores = {name: sum(shape) / sizes[name] for name, shape in shapes.items()}
    whole: set[str] = set()
    while len(whole) < len(shapes):
        rest = [name for name in shapes if name not in whole]
        wanted = density * sum(sizes.values()) - sum(sizes[name] for name in whole)
        factor = wanted / sum(scores[name] * sizes[name] for name in rest)
        full = {name for name in rest if factor * scores[name] >= 1}
        if not full:
            return {name: 1.0 if name in whole else factor * scores[name] for name in shapes}
        whole |= full
    return dict.fromkeys(shapes, 1.0)


def share_out(params: Mapping[str, Any], plan: Plan, budget: Budget) -> Plan:
    """The plan whose masks keep as many weights as before, shared out among the layers.

    Each layer rounds its number of blocks up, so that the layers together keep a little more.

    Args:
      params: nested mapping of arrays or `jax.ShapeDtypeStruct`.
      plan: which parameter gets which rules; all masks of it have one ratio.
      budget: `uniform`, the plan as it is; `global` as well, which `global_ratios` shares out when
        masking starts; `erk`, as `erk_densities`.

    Returns:
      The same plan with a pattern more for every masked kernel.

    Raises:
      InputError: the masks have different ratios, or the budget is unknown.
    """
    check_budget(budget)
    kernels = list(masked_kernels(params, plan))
    if budget == "uniform" or not kernels:
        return plan
    ratios = _agreed(budget, "ratio", {rule.ratio for _, _, rule in kernels})
    if budget == "global":
        _agreed(budget, "block", {rule.block for _, _, rule in kernels})
        _agreed(budget, "score", {rule.score for _, _, rule in kernels})
        return plan
    densities = erk_densities({path: kernel.shape for path, kernel, _ in kernels}, 1 - ratios)
    return with_ratios(params, plan, {path: 1 - share for path, share in densities.items()})


def n_kept_globally(n_blocks: int, n_kernels: int, ratio: float) -> int:
    """How many blocks all masked kernels keep together with the budget `global`."""
    return max(n_kept_blocks(n_blocks, ratio), n_kernels)


def global_ratios(params: Mapping[str, Any], plan: Plan) -> dict[str, float]:
    """The ratio of each masked kernel if the blocks of all of them are ranked together.

    `ceil(n * (1 - ratio))` of all n blocks are kept, those with the largest scores of the
    parameters, equal ones in the order of the tree, but of each kernel at least the best one.

    Args:
      params: nested mapping of arrays; concrete ones, the result is static.
      plan: which parameter gets which rules; all masks of it have one ratio, block and score.

    Returns:
      Ratios such that each kernel keeps exactly its number of blocks. They are above 0 even where
      it keeps all: it stays a masked kernel, computed as a dense one.
    """
    kernels = list(masked_kernels(params, plan))
    if not kernels:
        return {}
    scores = {
        path: np.asarray(block_scores(kernel, rule.block, rule.score, path)).ravel()
        for path, kernel, rule in kernels
    }
    sizes = [len(found) for found in scores.values()]
    of_kernel = np.repeat(np.arange(len(sizes)), sizes)
    n_kept = n_kept_globally(len(of_kernel), len(sizes), kernels[0][2].ratio)
    ranks = np.concatenate(list(scores.values()))
    order = np.argsort(-np.where(np.isnan(ranks), np.inf, ranks), kind="stable")
    _, best = np.unique(of_kernel[order], return_index=True)
    order = np.concatenate([order[best], np.delete(order, best)])
    counts = np.bincount(of_kernel[order[:n_kept]], minlength=len(sizes))
    # Half a block less than the number to keep: rounding up gives it in any arithmetic.
    return {
        path: 1 - (int(count) - 0.5) / size
        for path, count, size in zip(scores, counts, sizes, strict=True)
    }


def with_ratios(params: Mapping[str, Any], plan: Plan, ratios: Mapping[str, float]) -> Plan:
    """The plan with a ratio of its own for every masked kernel."""
    masks = {
        path: dataclasses.replace(rule, ratio=ratios[path])
        for path, _, rule in masked_kernels(params, plan)
    }
    return dict(plan) | {path: _with_mask(plan.get(path, ()), mask) for path, mask in masks.items()}


def _agreed[T](budget: str, what: str, values: set[T]) -> T:
    """The one value that all masks of a plan have."""
    if len(values) > 1:
        found = ", ".join(sorted(map(str, values)))
        raise InputError(
            f"budget {budget} shares out one {what}, the plan has {found}: give every layer the "
            "same, or choose the budget uniform"
        )
    return next(iter(values))


def _with_mask(
    rules: Rule | tuple[Rule, ...], mask: BlockMasking
) -> BlockMasking | tuple[Rule, ...]:
    """The rules that a plan has for exactly this kernel, with another mask."""
    several = as_tuple(rules)
    others = [rule for rule in several if not isinstance(rule, BlockMasking)]
    return (mask, *others) if others else mask
