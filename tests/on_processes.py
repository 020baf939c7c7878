"""Trains the tiny model together with other processes, and prints the losses.

    python tests/on_processes.py ENGINE BACKWARD COORDINATOR COUNT INDEX

prints on each process a JSON object: what `on_devices.losses` says, the number of devices, and
whether a state that process 0 alone knew arrived.
"""

import json
import sys

import jax
import numpy as np
import on_devices
import tiny

from sparsemlp.distributed import processes
from sparsemlp.distributed.parallel import data_mesh, replicate_first
from sparsemlp.distributed.place import Place


def arrived() -> bool:
    """Whether every bit of what process 0 has is on this process too."""
    bits = np.arange(16, dtype=np.uint32) << 28 | 0x00400001
    state = {"bits": bits.view(np.float32), "zero": np.float32(-0.0), "flags": np.arange(3) > 1}
    own = state if processes.is_first() else jax.tree.map(np.zeros_like, state)
    found = replicate_first(own, data_mesh(None, tiny.BATCH))
    return all(
        np.asarray(found[name]).tobytes() == value.tobytes() for name, value in state.items()
    )


def main(engine: str, backward: str, coordinator: str, count: str, index: str) -> None:
    """Joins the others, trains and prints."""
    place = Place(coordinator, int(count), int(index))
    processes.join(place, timeout=300.0)
    n_devices = len(jax.devices())
    found = {
        "devices": n_devices,
        "arrived": arrived(),
    }
    print(json.dumps(found | on_devices.losses(n_devices, engine, backward)))
    processes.leave(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
