"""The plan that a Flax module is given."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
from flax.core import FrozenDict

from sparsemlp.errors import InputError
from sparsemlp.plan import Plan, check_plan


def frozen_plan(plan: Any) -> FrozenDict[str, Any]:
    """A plan as an attribute of a module, which has to be hashable; None is the empty one.

    Raises:
      InputError: it maps no patterns to rules.
    """
    if plan is not None and not isinstance(plan, Mapping):
        raise InputError(
            f"plan {plan!r} maps no patterns to rules: give a mapping, such as "
            "{'*/XPatch/kernel': BlockMasking((32, 32), 0.8)}"
        )
    return FrozenDict(plan or {})


def check_own_plan(model: nn.Module, plan: Plan) -> None:
    """Checks the plan of a whole model while its parameters are made, to be called at the end.

    Of a model inside another nothing is said: the plan may be meant for all of that one.

    Raises:
      InputError: as `check_plan`.
    """
    is_whole = not model.path and not isinstance(model.parent, nn.Module)
    if plan and is_whole and model.is_initializing():
        check_plan(model.variables["params"], plan)
