"""The kernels of a parameter tree that a plan names, and what it asks of them.

Every pattern has to match a kernel, and a block has to divide each kernel that it is for.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from jaxtyping import Array

from sparsemlp.blocks import (
    Block,
    block_grid,
    divides,
    matrix_shape,
    nearest_that_divide,
    why_indivisible,
)
from sparsemlp.errors import InputError
from sparsemlp.plan import Plan, as_plan, masking_for, matches, rules_for
from sparsemlp.rules import BlockMasking

_NO_KERNELS = ("bias", "scale", "embedding")
"""What Flax calls parameters that may have as many axes, in stacked layers for one."""


def check_plan(params: Mapping[str, Any], plan: Plan) -> None:
    """Checks a plan against parameters or their shapes.

    Args:
      params: nested mapping of arrays or `jax.ShapeDtypeStruct`.
      plan: the plan.

    Raises:
      InputError: a pattern matches no parameter or one that is no kernel, or a block does not
        divide its kernel.
    """
    block_counts(params, plan)


def block_counts(params: Mapping[str, Any], plan: Plan) -> dict[str, int]:
    """How many blocks each masked kernel has, by its path; in the order of the parameter tree.

    Raises:
      InputError: as `check_plan`.
    """
    kernels = [
        (path, matrix_shape(kernel.shape), rule.block)
        for path, kernel, rule in masked_kernels(params, plan)
    ]
    _check_blocks(kernels)
    return {name: math.prod(block_grid(shape, block)) for name, shape, block in kernels}


def masked_kernels(
    params: Mapping[str, Any], plan: Plan | None
) -> Iterable[tuple[str, Array, BlockMasking]]:
    """Path, kernel and rule of every masked kernel, in the order of the parameter tree.

    Raises:
      InputError: as `as_plan`; a pattern matches no parameter or one that is no kernel, or these
        are all variables of a model.
    """
    plan = as_plan(plan)
    if not isinstance(params, Mapping):
        raise InputError(
            f"parameters of type {type(params).__name__} are no nested mapping of arrays: give "
            "variables['params'], as a model's init returns it"
        )
    inside = params.get("params")
    if isinstance(inside, Mapping) and all(isinstance(v, Mapping) for v in inside.values()):
        raise InputError(
            "a plan is for the parameters, and these are the variables of a model: give "
            "variables['params']"
        )
    unmatched = set(plan)
    for entries, leaf in jax.tree.leaves_with_path(params):
        path = path_of(entries)
        matching = {pattern for pattern in plan if matches(pattern, path)}
        unmatched -= matching
        if matching and not _is_kernel(path, leaf):
            way_out = "end the pattern in /kernel"
            if path.endswith("kernel"):
                way_out = (
                    "of stacked layers select masks one by one, with jax.vmap and the patterns of "
                    "the stack alone; a layer that is no SparseDense and no SparseConv, as "
                    "attention's, obeys no plan: let no pattern match it"
                )
            raise InputError(
                f"plan pattern {min(matching)!r} matches {path} of shape {leaf.shape}: rules "
                f"apply to kernels [in, out] and [down, across, in, out], {way_out}"
            )
        rule = masking_for(plan, path)
        if rule is not None:
            yield path, leaf, rule
    if unmatched:
        known = ", ".join(
            path_of(entries)
            for entries, leaf in jax.tree.leaves_with_path(params)
            if _is_kernel(path_of(entries), leaf)
        )
        raise InputError(
            f"plan pattern {min(unmatched)!r} matches no parameter: the kernels are {known}"
        )


def named_for_masking(params: Mapping[str, Any], plan: Plan) -> dict[str, tuple[int, int]]:
    """Kernels `(in, out)` by path that a masking rule names, one with ratio 0 included."""
    found: dict[str, tuple[int, int]] = {}
    for entries, leaf in jax.tree.leaves_with_path(params):
        path = path_of(entries)
        if BlockMasking in rules_for(plan, path):
            found[path] = matrix_shape(leaf.shape)
    return found


def path_of(entries: Sequence[Any]) -> str:
    """A parameter's path, `block_0/XPatch/kernel`, from what `jax.tree.leaves_with_path` gives.

    Raises:
      InputError: the parameter is in a box, as `nn.with_partitioning` makes them, or in a list.
    """
    where = jax.tree_util.keystr(tuple(entries))
    if any(isinstance(entry, jax.tree_util.SequenceKey) for entry in entries):
        raise InputError(
            f"{where} is in a list or a tuple: give the parameters as nested mappings, whose keys "
            "the patterns of a plan name"
        )
    names = [getattr(entry, "key", None) for entry in entries]
    if None in names:
        raise InputError(
            f"{where} is in a box: give the parameters without them, as flax.linen.meta.unbox does"
        )
    return "/".join(map(str, names))


def _is_kernel(path: str, leaf: Any) -> bool:
    """Whether a parameter is that of a linear layer or of a convolution."""
    return len(leaf.shape) in (2, 4) and path.split("/")[-1] not in _NO_KERNELS


def _check_blocks(kernels: list[tuple[str, tuple[int, int], Block]]) -> None:
    """Raises InputError for the first block that does not divide its kernel.

    The message offers blocks that divide all kernels with that block, and the layers that the
    block does divide.
    """
    broken = [(name, shape, block) for name, shape, block in kernels if not divides(block, shape)]
    if not broken:
        return
    name, shape, block = broken[0]
    alike = [(path, other) for path, other, used in kernels if used == block]
    nearest = nearest_that_divide(block, *(other for _, other in alike))
    layers = [(_kind(path.split("/")[-2]), other) for path, other in alike if "/" in path]
    divided = {layer for layer, other in layers if divides(block, other)}
    divided -= {layer for layer, other in layers if not divides(block, other)}
    way_out = f"; nearest that divide all its kernels: {nearest}"
    if divided:
        way_out += f"; or mask only the layers that it divides: {','.join(sorted(divided))}"
        way_out += " (--mask-layers)"
    raise InputError(why_indivisible(block, shape, name) + way_out)


def _kind(layer: str) -> str:
    """What `--mask-layers` calls a layer of the parameter tree."""
    return re.sub(r"^conv_", "Conv", layer)
