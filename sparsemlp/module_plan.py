"""The plan, the rules and the masks that a Flax module is given."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
from flax import traverse_util
from flax.core import FrozenDict
from jaxtyping import Array

from sparsemlp.errors import InputError
from sparsemlp.mask_check import check_mask
from sparsemlp.masks import Mask
from sparsemlp.plan import LayerRules, Plan, as_plan, layer_rules
from sparsemlp.planned_kernels import check_plan


def frozen_plan(plan: Any) -> FrozenDict[str, Any]:
    """A plan as an attribute of a module, which has to be hashable.

    Raises:
      InputError: as `as_plan`.
    """
    return FrozenDict(as_plan(plan))


def rules_of(module: nn.Module, plan: Plan) -> LayerRules:
    """The rules that a plan has for the kernel of a layer.

    Raises:
      InputError: as `layer_rules`.
    """
    return layer_rules(plan, "/".join((*module.path, "kernel")))


def mask_of(module: nn.Module) -> Mask | None:
    """The mask of the kernel of a layer: its variable `kernel` in the collection `masks`.

    Raises:
      InputError: as `check_mask`, or the layer is given a mask in the place of `{"kernel": mask}`.
    """
    own: Any = module.variables.get("masks", {})
    if not isinstance(own, Mapping):
        raise InputError(
            f"the collection masks has no mapping for layer {'/'.join(module.path)}: a mask lies "
            "where its kernel does in the parameters, {..., 'kernel': mask}, as select_masks has it"
        )
    mask = own.get("kernel")
    check_mask(mask)
    return mask


def gradient_key(module: nn.Module, rules: LayerRules) -> Array | None:
    """A key of the random stream `gradient`, if the rules draw and the stream is there."""
    return module.make_rng("gradient") if rules.draws and module.has_rng("gradient") else None


def check_own(model: nn.Module, plan: Plan) -> None:
    """Checks what a whole model was given: its plan while parameters are made, else its masks.

    To be called at the end. Of a model inside another nothing is said: the plan may be meant for
    all of that one.

    Raises:
      InputError: as `check_plan`; or a mask is of no parameter, and would be passed over.
    """
    if model.path or isinstance(model.parent, nn.Module):
        return
    if model.is_initializing():
        if plan:
            check_plan(model.variables["params"], plan)
        return
    given: Any = model.variables
    known = traverse_util.flatten_dict(given.get("params", {}))
    masks = given.get("masks", {})
    for entries, _ in jax.tree.leaves_with_path(masks, is_leaf=lambda m: isinstance(m, Mask)):
        if tuple(getattr(entry, "key", None) for entry in entries) not in known:
            raise InputError(
                f"the collection masks has {jax.tree_util.keystr(entries)}, and the model no such "
                "parameter: give it as select_masks returns it for the model's parameters, "
                "{'params': params, 'masks': masks}"
            )
