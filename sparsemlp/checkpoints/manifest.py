"""What a checkpoint says of its arrays: name, dtype, shape and digest of each."""

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from sparsemlp.errors import InputError
from sparsemlp.files import Record


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Returns the leaves in flattening order, by their path joined with slashes."""
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "state"
        if name in named:
            raise InputError(f"two leaves of the state are called {name}: rename one of them")
        named[name] = leaf
    return named


def describe(leaf: Any) -> Record:
    """Returns dtype and shape of an array, or of what stands for one."""
    return {"dtype": np.dtype(leaf.dtype).name, "shape": list(leaf.shape)}


def digest_of_array(array: np.ndarray) -> str:
    """Returns a digest of dtype, shape and bytes."""
    digest = hashlib.blake2b(repr(describe(array)).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return digest.hexdigest()


def digest_of_record(record: Record) -> str:
    """Returns a digest of a record, whatever the order of its keys."""
    text = json.dumps(record, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def require_same_leaves(folder: Path, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raises InputError unless leaves that were saved and leaves to restore agree.

    Args:
      folder: the checkpoint, for the message.
      saved: what `describe` said of each leaf, by name.
      wanted: arrays or what stands for them, by name.
    """
    for name in [*wanted, *(name for name in saved if name not in wanted)]:
        there = _label(saved[name]) if name in saved else "absent"
        here = _label(describe(wanted[name])) if name in wanted else "absent"
        if there != here:
            raise InputError(
                f"leaf {name} is {there} in the checkpoint {folder} and {here} in the state to "
                "restore: use the model and optimizer options of the saved run"
            )


def _label(description: dict[str, Any]) -> str:
    return f"{description['dtype']}{description['shape']}"
