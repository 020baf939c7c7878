"""`mask_activity.npz`: how many masked steps of a run kept each block."""

import dataclasses
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sparsemlp.errors import InputError
from sparsemlp.files import write_whole

_DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


@dataclasses.dataclass(frozen=True, eq=False)
class MaskActivity:
    """How often blocks were kept.

    Attributes:
      counts: for each masked kernel int32 `[in / cols, out / rows]`, the steps that kept a block.
      masked_steps: how many steps masked.
    """

    counts: Mapping[str, np.ndarray]
    masked_steps: int

    def shares(self) -> dict[str, np.ndarray]:
        """Of the masked steps, float64 `[out / rows, in / cols]`; empty if there were none."""
        if self.masked_steps <= 0:
            return {}
        return {path: count.T / self.masked_steps for path, count in self.counts.items()}

    def write(self, path: Path, dataset: str) -> None:
        """Writes the file, whole.

        Args:
          path: where to.
          dataset: what was trained on.

        Raises:
          SaveError: the disk is full or refuses the write.
        """
        arrays: dict[str, Any] = {"masked_steps": self.masked_steps, "dataset": dataset}
        write_whole(path, lambda file: np.savez(file, **self.counts, **arrays))


def read_mask_activity(path: Path) -> MaskActivity:
    """Reads what `MaskActivity.write` wrote.

    Raises:
      InputError: there is no such file, or it is damaged.
    """
    try:
        with path.open("rb") as stream, np.load(stream) as file:
            counts = {name: file[name] for name in file.files}
            masked_steps = int(counts.pop("masked_steps"))
    except _DAMAGED as error:
        raise InputError(f"{path} cannot be read, it is lost or damaged: {error}") from error
    counts.pop("dataset", None)
    return MaskActivity(counts, masked_steps)
