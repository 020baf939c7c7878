"""How the blocks to keep are shared out among the layers."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

from sparsemlp.errors import InputError
from sparsemlp.plan import Plan, masked_kernels
from sparsemlp.rules import BlockMasking, Rule

Budget = Literal["uniform", "erk"]


def check_budget(budget: str) -> None:
    """Raises InputError unless `budget` is a way to share out the blocks."""
    if budget not in get_args(Budget):
        raise InputError(
            f"budget {budget!r} is unknown: choose one of {', '.join(get_args(Budget))}"
        )


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
      budget: `uniform`, the plan as it is; `erk`, as `erk_densities`.

    Returns:
      The same plan with a pattern more for every masked kernel.

    Raises:
      InputError: the masks have different ratios, or the budget is unknown.
    """
    check_budget(budget)
    kernels = list(masked_kernels(params, plan))
    if budget == "uniform" or not kernels:
        return plan
    ratios = {rule.ratio for _, _, rule in kernels}
    if len(ratios) > 1:
        found = ", ".join(f"{ratio:g}" for ratio in sorted(ratios))
        raise InputError(
            f"budget {budget} shares out one ratio, the plan has {found}: give every layer the "
            "same, or choose the budget uniform"
        )
    densities = erk_densities({path: kernel.shape for path, kernel, _ in kernels}, 1 - ratios.pop())
    masks = {
        path: dataclasses.replace(rule, ratio=1 - densities[path]) for path, _, rule in kernels
    }
    return dict(plan) | {path: _with_mask(plan.get(path, ()), mask) for path, mask in masks.items()}


def _with_mask(
    rules: Rule | tuple[Rule, ...], mask: BlockMasking
) -> BlockMasking | tuple[Rule, ...]:
    """The rules that a plan has for exactly this kernel, with another mask."""
    several = rules if isinstance(rules, tuple) else (rules,)
    others = [rule for rule in several if not isinstance(rule, BlockMasking)]
    return (mask, *others) if others else mask
