"""Checkpoints that survive a kill, a full disk and a flipped byte.

Orbax writes and reads the arrays; this module decides when a checkpoint counts. One folder per
step, named by it, is an orbax checkpoint of two items, so that any orbax program can read it:

* `state`: the non-empty leaves as a flat dictionary, named by their path (`params/patch/kernel`);
* `manifest`: step, score, metadata, and dtype, shape and digest of every leaf, with a digest of
  itself.

A checkpoint is written under `.saving`, forced to the disk, and only then renamed to its step, so
a folder that carries a step is complete unless the disk damaged it later.
"""

import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from sparsemlp.errors import InputError, SaveError
from sparsemlp.files import Record, sync
from sparsemlp.manifest import (
    describe,
    digest_of_array,
    digest_of_record,
    named_leaves,
    require_same_leaves,
)
from sparsemlp.quiet_orbax import quiet_orbax, reason


class _DamageError(Exception):
    """A checkpoint whose bytes are not those that were saved."""


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a checkpoint held: its step, the state as committed JAX arrays, and the metadata."""

    step: int
    state: PyTree
    metadata: Record


class Checkpoints(contextlib.AbstractContextManager["Checkpoints"]):
    """The checkpoints of one run: the last two and the best.

    Reading never changes the folder, so another process may read while the run saves. Only one
    process may save.

    Attributes:
        pinned: a step whose checkpoint is kept as well, for as long as this says so; None for none.

    Args:
        directory: folder of the checkpoints; made by the first save.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._scratch = self._directory / ".saving"
        # Without these orbax waits for the other processes of a run, which save nothing.
        alone = ocp.options.MultiprocessingOptions(
            primary_host=jax.process_index(),
            active_processes={jax.process_index()},
            barrier_sync_key_prefix=f"process{jax.process_index()}",
        )
        options = ocp.CompositeOptions(multiprocessing_options=alone)
        handler = ocp.CompositeCheckpointHandler(composite_options=options)
        self._orbax = ocp.Checkpointer(handler, multiprocessing_options=alone)
        self._damaged: set[str] = set()
        self.pinned: int | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases what orbax holds; every save has ended before."""
        self._orbax.close()

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint, ascending, without checking them."""
        return sorted({int(folder.stem) for folder in self._newest_first()})

    def save(
        self,
        step: int,
        state: PyTree[jax.Array],
        metadata: Record,
        score: float | None = None,
    ) -> None:
        """Saves one checkpoint and returns when it is on the disk.

        Then, not before, all others go but the last one before it and the best. Checkpoints of
        later steps belong to a continuation that was given up, and go as well. A checkpoint of
        the same step is replaced.

        Args:
            step: optimizer steps done, at least 0.
            state: arrays of any shape and dtype; PRNG keys as `jax.random.key_data`.
            metadata: anything that JSON can hold.
            score: the larger, the better; the largest of those kept is the best, the later one
                of equals. None and NaN are never the best.

        Raises:
            SaveError: the disk is full or refuses the write.
        """
        arrays = {name: np.asarray(leaf) for name, leaf in named_leaves(state).items()}
        manifest: dict[str, Any] = {
            "step": step,
            "score": None if score is None or math.isnan(score) else score,
            "metadata": json.loads(json.dumps(metadata)),
            "arrays": {
                name: describe(a) | {"digest": digest_of_array(a)} for name, a in arrays.items()
            },
        }
        manifest["digest"] = digest_of_record(manifest)
        try:
            self._write(step, arrays, manifest)
        except Exception as error:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise SaveError(
                f"cannot save the checkpoint of step {step} in {self._directory}: "
                f"{reason(error)}; make room there and continue, "
                "what was saved before is intact"
            ) from error
        self._damaged.discard(str(step))
        self._retire(step)

    def restore(self, like: PyTree, among: Collection[int] | None = None) -> Restored:
        """Restores the newest intact checkpoint, bit for bit.

        Args:
            like: the structure to restore, with arrays or `jax.ShapeDtypeStruct` as leaves.
            among: the steps to choose from; None for all.

        Returns:
            The state on the default device, in the structure of `like`.

        Raises:
            InputError: no checkpoint is intact, or the newest intact one holds other leaves,
                shapes or dtypes than `like`.

        Warns:
            UserWarning: a damaged checkpoint was skipped.
        """
        tried: set[tuple[str, int]] = set()
        while folder := next(
            (
                folder
                for folder in self._newest_first()
                if (among is None or int(folder.stem) in among) and _identity(folder) not in tried
            ),
            None,
        ):
            identity = _identity(folder)
            tried.add(identity)
            try:
                return self._read(folder, like)
            except _DamageError as damage:
                if _identity(folder) == identity:  # else replaced or retired while it was read
                    self._damaged.add(folder.name)
                    warnings.warn(f"damaged checkpoint {folder} skipped: {damage}", stacklevel=2)
        raise InputError(
            f"no intact checkpoint in {self._directory} ({len(tried)} damaged): "
            "name the folder of another run or start anew"
        )

    def _newest_first(self) -> list[Path]:
        """Returns the step folders; one that a save was replacing follows its successor."""
        found = [
            (int(folder.stem), not folder.suffix, folder)
            for folder in self._directory.glob("*")
            if re.fullmatch(r"\d+(\.replaced)?", folder.name) and folder.is_dir()
        ]
        return [folder for _, _, folder in sorted(found, reverse=True)]

    def _write(self, step: int, arrays: dict[str, np.ndarray], manifest: dict[str, Any]) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)
        fresh, final = self._scratch / str(step), self._directory / str(step)
        with quiet_orbax(sum(array.nbytes for array in arrays.values())):
            self._orbax.save(
                fresh,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave({n: a for n, a in arrays.items() if a.size}),
                    manifest=ocp.args.JsonSave(manifest),
                ),
            )
        for folder, _, files in os.walk(fresh):
            for name in [*files, "."]:
                sync(Path(folder, name))
        if final.exists():
            replaced = final.with_suffix(".replaced")
            shutil.rmtree(replaced, ignore_errors=True)
            final.rename(replaced)
        fresh.rename(final)
        sync(self._directory)

    def _retire(self, step: int) -> None:
        """Removes what is not kept, each folder renamed first so that none is left in part."""
        present = self._newest_first()
        intact = [
            folder
            for folder in present
            if not folder.suffix and folder.name not in self._damaged and int(folder.name) <= step
        ]
        scored = [(score, int(f.name), f) for f in intact if (score := self._score(f)) is not None]
        kept = {*intact[:2], *(folder for _, _, folder in sorted(scored)[-1:])}
        kept |= {folder for folder in intact if int(folder.name) == self.pinned}
        for folder in present:
            if folder not in kept:
                folder.rename(self._scratch / f"{folder.name}.retired")
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _score(self, folder: Path) -> float | None:
        try:
            return self._manifest(folder)["score"]
        except _DamageError:
            return None

    def _manifest(self, folder: Path) -> dict[str, Any]:
        try:
            with quiet_orbax():
                args = ocp.args.Composite(manifest=ocp.args.JsonRestore())
                manifest = dict(self._orbax.restore(folder, args=args)["manifest"])
            intact = manifest.pop("digest") == digest_of_record(manifest)
        except Exception as error:  # whatever damaged bytes make orbax raise
            raise _DamageError(f"unreadable manifest, {reason(error)}") from error
        if not intact:
            raise _DamageError("the manifest does not match its digest")
        return manifest

    def _read(self, folder: Path, like: PyTree) -> Restored:
        manifest = self._manifest(folder)
        wanted = named_leaves(like)
        require_same_leaves(folder, manifest["arrays"], wanted)
        arrays = {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in wanted.items()}
        targets = {name: array for name, array in arrays.items() if array.size}
        try:
            with quiet_orbax(sum(array.nbytes for array in arrays.values())):
                args = ocp.args.Composite(state=ocp.args.StandardRestore(targets))
                arrays |= self._orbax.restore(folder, args=args)["state"]
        except Exception as error:  # whatever damaged bytes make orbax raise
            raise _DamageError(f"unreadable state, {reason(error)}") from error
        for name, array in arrays.items():
            if digest_of_array(array) != manifest["arrays"][name]["digest"]:
                raise _DamageError(f"leaf {name} does not match its digest")
        leaves = [_on_default_device(arrays[name]) for name in wanted]
        state = jax.tree.unflatten(jax.tree.structure(like), leaves)
        return Restored(manifest["step"], state, manifest["metadata"])


def _identity(folder: Path) -> tuple[str, int]:
    """Returns what tells a folder from another one that took its name; 0 if it is gone."""
    try:
        return folder.name, folder.stat().st_ino
    except FileNotFoundError:
        return folder.name, 0


def _on_default_device(array: np.ndarray) -> jax.Array:
    placed = jnp.array(array)
    return jax.device_put(placed, placed.sharding)
