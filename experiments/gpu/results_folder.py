"""The folder of a GPU benchmark's results: of one device, code and versions alone."""

from pathlib import Path

import jax
from tuning.ceilings import measured_ceilings
from tuning.checksum import library_checksum
from tuning.device_lock import device_lock

from sparsemlp import InputError
from sparsemlp.files import Record, read_record, write_json
from sparsemlp.runs.environment import describe_environment


def code_digest() -> str:
    """A checksum of kernels, models and what times them: numbers of other code are not mixed."""
    return library_checksum(Path(__file__).parents[1])


def open_folder(folder: Path, *, is_trial: bool) -> Record:
    """What the folder says of the device; measured and written if it is new.

    Args:
      folder: `--out` of the benchmark.
      is_trial: whether nothing is measured.

    Raises:
      InputError: its results are of another device, of other code or versions, or of a trial.
    """
    path, environment = folder / "device.json", describe_environment()
    own = {
        "measured": not is_trial,
        "device": environment["device"],
        "versions": environment["versions"],
        "code": code_digest(),
    }
    if path.exists():
        device = read_record(path)
        if device is None:
            raise InputError(f"{path} is damaged: restore it, or choose another folder with --out")
        for name, value in own.items():
            if device.get(name) != value:
                raise InputError(
                    f"--out={folder} holds results with {name} {device.get(name)}, this is "
                    f"{value}: choose another folder"
                )
        return device
    with device_lock(is_trial=is_trial)():
        ceilings = measured_ceilings(is_tiny=is_trial)
    device = own | {"environment": environment, "ceilings": ceilings._asdict()}
    device["memory"] = jax.devices()[0].memory_stats()
    write_json(path, device)
    return device
