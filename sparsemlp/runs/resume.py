"""What a resumed run starts from."""

import warnings
from collections.abc import Collection
from typing import Any

from sparsemlp.checkpoints.checkpoint import Checkpoints, Restored
from sparsemlp.errors import InputError
from sparsemlp.files import Record
from sparsemlp.options import flag
from sparsemlp.runs.history import History
from sparsemlp.runs.run_folder import ANEW, RunFolder


def restore_run(
    folder: RunFolder,
    checkpoints: Checkpoints,
    shapes: Any,
    *,
    steps_per_epoch: int,
    total_steps: int,
    data: str,
    options: Record,
    among: Collection[int] | None = None,
) -> Restored | None:
    """Restores the newest intact checkpoint; changes nothing in the folder.

    Args:
      folder: the run.
      checkpoints: its checkpoints.
      shapes: the structure of the state, arrays or `jax.ShapeDtypeStruct`.
      steps_per_epoch: steps in an epoch.
      total_steps: steps of the whole run.
      data: checksum of the data that the run is to go on with.
      options: those of the run that have to be as they were, by name.
      among: the steps whose checkpoints may be chosen; None for all.

    Returns:
      The checkpoint, or None if the run was ended before it had saved anything at all.

    Raises:
      InputError: no checkpoint is left, the run was started on other data or with other
        options, its configuration says other steps than it made, or records are missing.
    """
    history = History(folder.metrics)
    if not checkpoints.steps():
        if folder.metrics.exists() or folder.mask_activity.exists():
            raise InputError(
                f"no checkpoint is left in {folder.checkpoints}, though the run had begun: bring "
                f"them back, or {ANEW}"
            )
        if folder.config.exists():
            warnings.warn(f"{folder.path} was ended before its first step: starting", stacklevel=2)
        return None
    restored = checkpoints.restore(shapes, among)
    if restored.metadata["data"] != data:
        raise InputError(
            f"the data are not those that {folder.path} was started on, their checksum differs: "
            "give the same --data-dir or file"
        )
    before = restored.metadata.get("options", {})  # Earlier versions did not say.
    for name, value in options.items():
        if name in before and before[name] != value:
            raise InputError(
                f"{folder.config.name} asks for {flag(name)}={value}, and {folder.path} was "
                f"trained with {before[name]}: a run goes on with the options that it began with, "
                "restore the file"
            )
    if restored.step > total_steps:
        raise InputError(
            f"{folder.path} was trained for {restored.step} steps, and {folder.config.name} asks "
            f"for {total_steps}: a run goes on with the options that it began with, restore the "
            "file"
        )
    n_epochs = restored.step // steps_per_epoch
    records = [record for record in history.read() if isinstance(record.get("epoch"), int)]
    for record in records:
        steps = record["epoch"] * steps_per_epoch
        if record.get("step", steps) != steps:
            raise InputError(
                f"{folder.path} made {record['step']} steps in {record['epoch']} epochs, and "
                f"{folder.config.name} asks for {steps}: a run goes on with the options that it "
                "began with, restore the file"
            )
    epochs = [record["epoch"] for record in records]
    if not set(range(1, n_epochs + 1)) <= set(epochs):
        raise InputError(
            f"{folder.metrics} lacks records of the {n_epochs} epochs before the checkpoint: "
            f"restore the file, or {ANEW}"
        )
    return restored
