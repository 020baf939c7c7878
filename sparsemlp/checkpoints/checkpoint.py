"""Checkpoints that survive a kill, a full disk and a flipped byte.

`orbax_folder` writes and reads one; this module decides which count and which are kept. A folder
per step is named by it. A checkpoint is written under `.saving`, forced to the disk, and only then
renamed to its step, so a folder that carries a step is complete unless the disk damaged it later.
"""

import contextlib
import dataclasses
import re
import shutil
import warnings
from collections.abc import Collection
from pathlib import Path

import jax
import numpy as np
from jaxtyping import PyTree

from sparsemlp.checkpoints.manifest import named_leaves
from sparsemlp.checkpoints.orbax_folder import DamageError, OrbaxFolders, manifest_of
from sparsemlp.checkpoints.quiet_orbax import system_error
from sparsemlp.errors import InputError, SaveError, refusal
from sparsemlp.files import Record, sync


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
        self._folders = OrbaxFolders()
        self._damaged: set[str] = set()
        self.pinned: int | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases what orbax holds; every save has ended before."""
        self._folders.close()

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint, ascending, without checking them."""
        return sorted({int(folder.stem) for folder in self._newest_first()})

    def recent(self) -> list[int]:
        """Returns the last two steps, and the one that was pinned when the last was saved."""
        steps = self.steps()
        recent = {*steps[-2:]}
        if steps:
            with contextlib.suppress(DamageError):
                newest = self._folders.manifest(self._directory / str(steps[-1]))
                recent |= {step for step in steps if step == newest.get("pinned")}
        return sorted(recent)

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
        # An array for which there was no memory raises here. To numpy it would never answer.
        state = jax.block_until_ready(state)
        arrays = {name: np.asarray(leaf) for name, leaf in named_leaves(state).items()}
        manifest = manifest_of(step, arrays, score, metadata, self.pinned)
        try:
            self._write(step, arrays, manifest)
        except Exception as error:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise SaveError(
                f"cannot save the checkpoint of step {step} in {self._directory}: "
                f"{refusal(system_error(error))} and continue, what was saved before is intact"
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
                state, manifest = self._folders.read(folder, like)
                return Restored(manifest["step"], state, manifest["metadata"])
            except DamageError as damage:
                if _identity(folder) == identity:  # else replaced or retired while it was read
                    self._damaged.add(folder.name)
                    warnings.warn(f"damaged checkpoint {folder} skipped: {damage}", stacklevel=2)
        raise InputError(
            f"no intact checkpoint in {self._directory} ({len(tried)} damaged): "
            "name the folder of another run or start anew"
        )

    def forget_after(self, step: int) -> None:
        """Removes the checkpoints of later steps, which belong to a continuation given up.

        Raises:
          SaveError: the disk refuses it.
        """
        later = [folder for folder in self._newest_first() if int(folder.stem) > step]
        if later:
            self._remove(later)

    def _newest_first(self) -> list[Path]:
        """Returns the step folders; one that a save was replacing follows its successor."""
        found = [
            (int(folder.stem), not folder.suffix, folder)
            for folder in self._directory.glob("*")
            if re.fullmatch(r"\d+(\.replaced)?", folder.name) and folder.is_dir()
        ]
        return [folder for _, _, folder in sorted(found, reverse=True)]

    def _write(self, step: int, arrays: dict[str, np.ndarray], manifest: Record) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)
        fresh, final = self._scratch / str(step), self._directory / str(step)
        self._folders.write(fresh, arrays, manifest)
        if final.exists():
            replaced = final.with_suffix(".replaced")
            shutil.rmtree(replaced, ignore_errors=True)
            final.rename(replaced)
        fresh.rename(final)
        sync(self._directory)

    def _retire(self, step: int) -> None:
        """Removes what is not kept."""
        present = self._newest_first()
        intact = [
            folder
            for folder in present
            if not folder.suffix and folder.name not in self._damaged and int(folder.name) <= step
        ]
        scored = [(score, int(f.name), f) for f in intact if (score := self._score(f)) is not None]
        kept = {*intact[:2], *(folder for _, _, folder in sorted(scored)[-1:])}
        kept |= {folder for folder in intact if int(folder.name) == self.pinned}
        self._remove([folder for folder in present if folder not in kept])

    def _remove(self, folders: Collection[Path]) -> None:
        """Each is renamed first, so that none is left in part.

        Raises:
          SaveError: the disk refuses it.
        """
        try:
            self._scratch.mkdir(parents=True, exist_ok=True)
            for folder in folders:
                folder.rename(self._scratch / f"{folder.name}.retired")
        except OSError as error:
            names = ", ".join(folder.stem for folder in folders)
            raise SaveError(
                f"cannot remove the checkpoints of steps {names} in {self._directory}: "
                f"{refusal(error)} and continue"
            ) from error
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _score(self, folder: Path) -> float | None:
        try:
            return self._folders.manifest(folder)["score"]
        except DamageError:
            return None


def _identity(folder: Path) -> tuple[str, int]:
    """Returns what tells a folder from another one that took its name; 0 if it is gone."""
    try:
        return folder.name, folder.stat().st_ino
    except FileNotFoundError:
        return folder.name, 0
