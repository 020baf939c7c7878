"""Masks in Flax's state dicts and in programs of `jax.export`, as any other arrays are."""

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import flax.serialization
import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from pallas_kernels.lists import BlockLists, ListedBlocks

_STATIC = ("kernel_shape", "block")

# Names that are taken are those of this module, which is imported again.
with contextlib.suppress(ValueError):
    for _kind in (BlockLists, ListedBlocks):
        jax.export.register_namedtuple_serialization(
            _kind, serialized_name=f"sparsemlp.{_kind.__name__}"
        )


def serializable[C](kind: type[C]) -> type[C]:
    """A kind of mask, a pytree already, that state dicts and exported programs may hold.

    A state dict has the arrays that make the mask, its shape and its block, which have to be those
    of the mask that is the target. It has no lists: a restored mask is one without, whose products
    make those that they need.
    """
    with contextlib.suppress(ValueError):
        jax.export.register_pytree_node_serialization(
            kind,
            serialized_name=f"sparsemlp.{kind.__name__}",
            serialize_auxdata=lambda static: json.dumps(static, default=int).encode(),
            deserialize_auxdata=lambda text: tuple(map(tuple, json.loads(text))),
        )
    flax.serialization.register_serialization_state(kind, _state, _restored)
    return kind


def _state(mask: Any) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(mask) if field.init]
    state = {name: getattr(mask, name) for name in names}
    state |= {name: np.asarray(state[name], np.int64) for name in _STATIC}
    return {name: array for name, array in state.items() if array is not None}


def _restored(mask: Any, state: Any) -> Any:
    kind, wanted = type(mask).__name__, _state(mask)
    found = state if isinstance(state, Mapping) else {}
    if wanted.keys() != found.keys():
        raise ValueError(
            f"a {kind} with {', '.join(wanted)} cannot be restored from "
            f"{', '.join(found) or 'nothing'}"
        )
    for name in _STATIC:
        if not np.array_equal(found[name], wanted[name]):
            own, other = (tuple(np.ravel(a[name]).tolist()) for a in (wanted, found))
            raise ValueError(
                f"a {kind} whose {name} is {own} cannot be restored from one whose {name} is "
                f"{other}: make the target with the same plan"
            )
    if found["kept"].shape != wanted["kept"].shape:
        raise ValueError(
            f"a {kind} with kept of shape {wanted['kept'].shape} cannot be restored from one of "
            f"shape {found['kept'].shape}: make the target with the same plan"
        )
    arrays = {name: jnp.asarray(found[name]) for name in found if name not in _STATIC}
    return dataclasses.replace(mask, **arrays)
