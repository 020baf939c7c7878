"""The plan: which parameter gets which rules.

A plan maps patterns to a rule or to several. A pattern is matched as a whole, the way a shell
matches file names (`*` also spans `/`), against the path of a kernel in the parameter tree, as
`block_0/XPatch/kernel`. Where several patterns match, the most specific one decides, for each kind
of rule: the path itself, else that with the most characters besides `*`, `?` and `[...]`. The order
of a plan means nothing.
"""

import dataclasses
import fnmatch
import re
from collections.abc import Mapping
from typing import Any, cast

from sparsemlp.errors import InputError
from sparsemlp.rules import (
    ActivationPooling,
    ActivationPruning,
    Backward,
    BlockMasking,
    GradientPruning,
    Rule,
)

Plan = Mapping[str, Rule | tuple[Rule, ...]]


_WILDCARDS = re.compile(r"\*|\?|\[!?\]?[^\]]*\]")


def as_plan(plan: Any) -> Plan:
    """A plan, as it was given; None is the empty one.

    Raises:
      InputError: it maps no patterns to rules.
    """
    if plan is not None and not isinstance(plan, Mapping):
        raise InputError(
            f"plan {plan!r} maps no patterns to rules: give a mapping, such as "
            "{'*/XPatch/kernel': BlockMasking((32, 32), 0.8)}"
        )
    for pattern in plan or ():
        if not isinstance(pattern, str):
            raise InputError(
                f"plan pattern {pattern!r} is no text: write the path of a kernel with slashes, "
                "such as 'block_0/XPatch/kernel'"
            )
    return plan or {}


def all_rules(plan: Plan) -> list[Rule]:
    """Every rule of a plan, whichever parameter it is for."""
    several = (as_tuple(rules) for rules in plan.values())
    return [rule for rules in several for rule in rules]


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern of a plan is for a parameter: a glob, or its path, brackets and all.

    Args:
      pattern: as `*/XPatch/kernel`.
      path: of the parameter, the keys that lead to it with slashes between them.
    """
    return pattern == path or fnmatch.fnmatchcase(path, pattern)


def rules_for(plan: Plan, path: str) -> dict[type, Rule]:
    """The rules of one parameter, by kind.

    Args:
      plan: the plan.
      path: of the parameter, the keys that lead to it with slashes between them.

    Raises:
      InputError: two equally specific patterns give the parameter different rules of one kind, or
        what a pattern has is no rule.
    """
    candidates: dict[type, list[tuple[str, Rule]]] = {}
    for pattern, rules in plan.items():
        if matches(pattern, path):
            for rule in as_tuple(rules):
                if not isinstance(rule, Rule):
                    raise InputError(
                        f"plan pattern {pattern!r} has {rule!r}, which is no rule: give one such "
                        "as BlockMasking, or a tuple of rules"
                    )
                candidates.setdefault(type(rule), []).append((pattern, rule))
    return {kind: _most_specific(path, found) for kind, found in candidates.items()}


@dataclasses.dataclass(frozen=True)
class LayerRules:
    """The rules of one linear layer, one for each of its operands at the most."""

    masking: BlockMasking | None
    activation: ActivationPruning | ActivationPooling | None
    gradient: GradientPruning | None

    @property
    def backward(self) -> Backward:
        """What the two products of the backward pass use of the mask."""
        return "masked" if self.masking is None else self.masking.backward

    @property
    def draws(self) -> bool:
        """Whether the backward pass draws at random."""
        return self.gradient is not None and self.gradient.method == "random"


def layer_rules(plan: Plan, path: str) -> LayerRules:
    """The rules of one kernel, by the operand that they concern.

    Raises:
      InputError: as `rules_for`, or the activation has two rules.
    """
    rules = rules_for(plan, path)
    pruning, pooling = rules.get(ActivationPruning), rules.get(ActivationPooling)
    if pruning is not None and pooling is not None:
        raise InputError(
            f"the plan gives {path} both {pruning} and {pooling}: an activation is kept "
            "in one way, remove one"
        )
    return LayerRules(
        cast(Any, rules.get(BlockMasking)),
        cast(Any, pruning or pooling),
        cast(Any, rules.get(GradientPruning)),
    )


def _most_specific(path: str, candidates: list[tuple[str, Rule]]) -> Rule:
    highest = max(_specificity(pattern, path) for pattern, _ in candidates)
    (first, rule), *others = [c for c in candidates if _specificity(c[0], path) == highest]
    for pattern, other in others:
        if other != rule and pattern == first:
            raise InputError(
                f"plan pattern {pattern!r} has two rules of the kind {type(rule).__name__} for "
                f"{path}: remove one"
            )
        if other != rule:
            raise InputError(
                f"plan patterns {first!r} and {pattern!r} are equally specific and give {path} "
                f"different rules of the kind {type(rule).__name__}: remove one"
            )
    return rule


def _specificity(pattern: str, path: str) -> tuple[bool, int]:
    return pattern == path, len(_WILDCARDS.sub("", pattern))


def masking_for(plan: Plan, path: str) -> BlockMasking | None:
    """The masking rule of one parameter, or None where it is dense."""
    rule = rules_for(plan, path).get(BlockMasking)
    return rule if isinstance(rule, BlockMasking) and rule.ratio > 0 else None


def masks_any(plan: Plan) -> bool:
    """Whether a plan masks a kernel at a ratio above 0."""
    return any(isinstance(rule, BlockMasking) and rule.ratio > 0 for rule in all_rules(plan))


def masks_alone(plan: Plan) -> bool:
    """Whether a plan prunes neither activations nor gradients."""
    return all(isinstance(rule, BlockMasking) for rule in all_rules(plan))


def as_tuple(rules: Rule | tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules of a pattern of a plan, which may be one alone."""
    return rules if isinstance(rules, tuple) else (rules,)
