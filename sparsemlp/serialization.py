"""Masks in Flax's state dicts and in programs of `jax.export`, as any other arrays are."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import flax.serialization
import jax
import jax.export
import jax.numpy as jnp

from pallas_kernels.lists import BlockLists, ListedBlocks

_STATIC = ("kernel_shape", "block")

jax.export.register_namedtuple_serialization(BlockLists, serialized_name="sparsemlp.BlockLists")
jax.export.register_namedtuple_serialization(ListedBlocks, serialized_name="sparsemlp.ListedBlocks")


def serializable[C](kind: type[C]) -> type[C]:
    """A kind of mask, a pytree already, that state dicts and exported programs may hold.

    A state dict has the arrays that make the mask, without its lists; what is static is that of the
    mask which is the target.
    """
    jax.export.register_pytree_node_serialization(
        kind,
        serialized_name=f"sparsemlp.{kind.__name__}",
        serialize_auxdata=lambda static: json.dumps(static).encode(),
        deserialize_auxdata=lambda text: tuple(map(tuple, json.loads(text))),
    )
    flax.serialization.register_serialization_state(kind, _arrays, _restored)
    return kind


def _arrays(mask: Any) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(mask) if field.init)
    found = {name: getattr(mask, name) for name in names if name not in _STATIC}
    return {name: array for name, array in found.items() if array is not None}


def _restored(mask: Any, state: Mapping[str, Any]) -> Any:
    wanted = _arrays(mask)
    if wanted.keys() != state.keys():
        raise ValueError(
            f"a {type(mask).__name__} with {', '.join(wanted)} cannot be restored from "
            f"{', '.join(state) or 'nothing'}"
        )
    if state["kept"].shape != mask.kept.shape:
        raise ValueError(
            f"a {type(mask).__name__} with kept of shape {mask.kept.shape} cannot be restored from "
            f"one of shape {state['kept'].shape}: select the target with the same plan"
        )
    return dataclasses.replace(mask, **jax.tree.map(jnp.asarray, dict(state)))
