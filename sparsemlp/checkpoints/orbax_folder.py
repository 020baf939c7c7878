"""One checkpoint as orbax writes and reads it, its every byte checked.

It has two items, so that any orbax program can read it:

* `state`: the non-empty leaves as a flat dictionary, named by their path (`params/patch/kernel`);
* `manifest`: step, score, metadata, and dtype, shape and digest of every leaf, with a digest of
  itself.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from sparsemlp.checkpoints.manifest import (
    describe,
    digest_of_array,
    digest_of_record,
    named_leaves,
    require_same_leaves,
)
from sparsemlp.checkpoints.quiet_orbax import quiet_orbax, reason
from sparsemlp.files import Record, sync


class DamageError(Exception):
    """A checkpoint whose bytes are not those that were saved."""


def manifest_of(
    step: int,
    arrays: Mapping[str, np.ndarray],
    score: float | None,
    metadata: Record,
    pinned: int | None = None,
) -> Record:
    """What a checkpoint says of itself, with a digest of it all.

    Args:
      step: optimizer steps done.
      arrays: the leaves of the state by name.
      score: the larger, the better; NaN is written as None.
      metadata: anything that JSON can hold.
      pinned: the step that is kept beside it, if one is.
    """
    manifest: Record = {
        "step": step,
        "score": None if score is None or math.isnan(score) else score,
        "pinned": pinned,
        "metadata": json.loads(json.dumps(metadata)),
        "arrays": {
            name: describe(a) | {"digest": digest_of_array(a)} for name, a in arrays.items()
        },
    }
    return manifest | {"digest": digest_of_record(manifest)}


class OrbaxFolders:
    """Writes and reads folders of checkpoints, whatever they are called."""

    def __init__(self) -> None:
        # Without these orbax waits for the other processes of a run, which save nothing.
        alone = ocp.options.MultiprocessingOptions(
            primary_host=jax.process_index(),
            active_processes={jax.process_index()},
            barrier_sync_key_prefix=f"process{jax.process_index()}",
        )
        options = ocp.CompositeOptions(multiprocessing_options=alone)
        handler = ocp.CompositeCheckpointHandler(composite_options=options)
        self._orbax = ocp.Checkpointer(handler, multiprocessing_options=alone)

    def close(self) -> None:
        """Releases what orbax holds; every write has ended before."""
        self._orbax.close()

    def write(self, folder: Path, arrays: Mapping[str, np.ndarray], manifest: Record) -> None:
        """Writes a folder that is not there yet, and returns when its files are on the disk.

        Args:
          folder: where to.
          arrays: the leaves of the state by name.
          manifest: that of `manifest_of`.
        """
        with quiet_orbax(sum(array.nbytes for array in arrays.values())):
            self._orbax.save(
                folder,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave({n: a for n, a in arrays.items() if a.size}),
                    manifest=ocp.args.JsonSave(manifest),
                ),
            )
        for below, _, files in os.walk(folder):
            for name in [*files, "."]:
                sync(Path(below, name))

    def manifest(self, folder: Path) -> dict[str, Any]:
        """Returns the manifest of a folder, raises DamageError if it is not what was written."""
        try:
            with quiet_orbax():
                args = ocp.args.Composite(manifest=ocp.args.JsonRestore())
                manifest = dict(self._orbax.restore(folder, args=args)["manifest"])
            intact = manifest.pop("digest") == digest_of_record(manifest)
        except Exception as error:  # whatever damaged bytes make orbax raise
            raise DamageError(f"unreadable manifest, {reason(error)}") from error
        if not intact:
            raise DamageError("the manifest does not match its digest")
        return manifest

    def read(self, folder: Path, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """Reads the state of a folder, bit for bit, and its manifest.

        Args:
          folder: the checkpoint.
          like: the structure to restore, with arrays or `jax.ShapeDtypeStruct` as leaves.

        Returns:
          The state on the default device, in the structure of `like`, and the manifest.

        Raises:
          DamageError: bytes are not those that were saved.
          InputError: it holds other leaves, shapes or dtypes than `like`.
        """
        manifest = self.manifest(folder)
        wanted = named_leaves(like)
        require_same_leaves(folder, manifest["arrays"], wanted)
        arrays = {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in wanted.items()}
        targets = {name: array for name, array in arrays.items() if array.size}
        try:
            with quiet_orbax(sum(array.nbytes for array in arrays.values())):
                args = ocp.args.Composite(state=ocp.args.StandardRestore(targets))
                arrays |= self._orbax.restore(folder, args=args)["state"]
        except Exception as error:  # whatever damaged bytes make orbax raise
            raise DamageError(f"unreadable state, {reason(error)}") from error
        for name, array in arrays.items():
            if digest_of_array(array) != manifest["arrays"][name]["digest"]:
                raise DamageError(f"leaf {name} does not match its digest")
        leaves = [_on_default_device(arrays[name]) for name in wanted]
        return jax.tree.unflatten(jax.tree.structure(like), leaves), manifest


def _on_default_device(array: np.ndarray) -> jax.Array:
    placed = jnp.array(array)
    return jax.device_put(placed, placed.sharding)
