"""What a forward pass leaves to its backward pass: every array, whose it is and why it is kept."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Loss = Callable[[Any, Any], Any]

COMPACT, IDS, CONDITIONS, WHOLE = "by rules", "ids", "conditions", "whole"
KINDS = (WHOLE, COMPACT, IDS, CONDITIONS)
"""Activations as they are; blocks or means that a rule keeps; where kept blocks stand; booleans."""


@dataclasses.dataclass(frozen=True)
class Residual:
    """An array that is kept for the backward pass.

    Attributes:
      layer: who made it, as `block_0/XPatch`; empty outside of all layers.
      kind: one of `KINDS`.
      n_bytes: its size, in bytes.
    """

    layer: str
    kind: str
    n_bytes: int


def residuals(loss: Loss, params: Any, images: Any) -> list[Residual]:
    """What the forward pass of a loss keeps, parameters and images apart.

    Counted from the traced program, which nothing has been optimised away of: an array that several
    operations keep counts once, a constant not at all.

    Args:
      loss: of parameters and images.
      params: parameters, arrays or their shapes.
      images: images, an array or its shape.
    """

    def kept(params: Any, images: Any) -> list[Any]:
        return jax.tree.leaves(jax.vjp(lambda p: loss(p, images), params)[1])

    program = jax.make_jaxpr(kept)(params, images).jaxpr
    given = {id(variable) for variable in (*program.invars, *program.constvars)}
    unique = {id(v): v for v in program.outvars if id(v) not in given}
    found = []
    for variable in unique.values():
        layer, primitive = _origin(program, variable, "")
        if primitive not in ("broadcast_in_dim", "given"):
            shape: Any = variable.aval
            found.append(
                Residual(layer, _kind(shape, primitive), shape.size * shape.dtype.itemsize)
            )
    return found


def saved_bytes(loss: Loss, params: Any, images: Any) -> int:
    """Bytes of all residuals of a loss together."""
    return sum(residual.n_bytes for residual in residuals(loss, params, images))


def layer_kind(layer: str) -> str:
    """The kind of a layer: its name without numbers of blocks and convolutions."""
    return re.sub(r"(?:block_\d+/)|(?:_\d+)", "", layer) or "other"


def _origin(program: Any, variable: Any, path: str) -> tuple[str, str]:
    """Layer and primitive of the operation that made a variable, inside whatever calls it."""
    for equation in reversed(program.eqns):
        if variable not in equation.outvars:
            continue
        here = f"{path}/{equation.source_info.name_stack}"
        inner = _called(equation)
        if inner is None:
            name = equation.params.get("name", "") if equation.primitive.name == "name" else ""
            return _layer(here), name or equation.primitive.name
        result = inner.outvars[equation.outvars.index(variable)]
        if result in inner.invars:
            behind = equation.invars[inner.invars.index(result) - len(inner.invars)]
            return _origin(program, behind, path)
        return _origin(inner, result, here)
    return _layer(path), "given"


def _called(equation: Any) -> Any:
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if name in equation.params:
            called = equation.params[name]
            return getattr(called, "jaxpr", called)
    return None


def _layer(path: str) -> str:
    """A path of scopes without model, transformations and methods: `embed` of `/jvp(M)/embed`."""
    return "/".join(part for part in path.split("/") if part and not re.search(r"[(.]", part))


def _kind(shape: Any, primitive: str) -> str:
    if shape.dtype == jnp.bool_:
        return CONDITIONS
    if jnp.issubdtype(shape.dtype, jnp.integer):
        return IDS
    return COMPACT if primitive == "compact_activation" else WHOLE
