"""Trains the tiny model on one device and on all, in a process of its own, and prints the losses.

    JAX_NUM_CPU_DEVICES=4 python tests/on_devices.py ENGINE BACKWARD PARTS

prints a JSON object: the number of devices and, for one device and for all, the loss of each of 20
steps and a digest of the masks after them. All devices compute their images in PARTS, one at once.
"""

import dataclasses
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tiny

from sparsemlp.configuration.program import build_program
from sparsemlp.distributed.parallel import replicate
from sparsemlp.mask_trees import flatten_masks, select_masks
from sparsemlp.schedule import MASKED
from sparsemlp.train.train_state import initial_state, no_totals
from sparsemlp.train.trainer import Trainer

N_STEPS = 20


def losses(devices: int, engine: str, backward: str, parts: int = 1) -> dict[str, Any]:
    """The loss of every step, and the ids of the kept blocks at the end.

    With engine `cpu` images are mixed, across devices; without, half the instructions are compiled.
    """
    mixing = {} if engine == "cpu" else {"mixup": 0.0, "cutmix": 0.0}
    settings = tiny.settings(
        devices=devices,
        engine=engine,
        backward=backward,
        drop_path=0.2,
        lr=1e-3,
        depth=2,
        accumulate=parts,
        **mixing,
    )
    data = tiny.dataset()
    program = build_program(settings, data)
    assert (1 if program.mesh is None else program.mesh.size) == devices
    trainer = Trainer(program, data, tiny.BATCH)
    state = replicate(initial_state(program), program.mesh)
    found: list[float] = []
    for step in range(N_STEPS):
        epoch, position = divmod(step, trainer.steps_per_epoch)
        state = dataclasses.replace(state, totals=replicate(no_totals(), program.mesh))
        state, _, _ = trainer.train(state, epoch, position, seconds=0.0, phase=MASKED)
        found.append(float(state.totals["loss"]) / int(state.totals["images"]))
    masks = flatten_masks(jax.jit(lambda p: select_masks(p, program.model.plan))(state.params))
    kept = {path: np.asarray(mask.kept).tolist() for path, mask in masks.items()}
    tested = trainer.evaluate(state, MASKED)
    return {"losses": found, "kept": kept, "test_loss": float(jnp.sum(tested.loss))}


if __name__ == "__main__":
    n_devices = len(jax.devices())
    chosen_engine, chosen_backward, n_parts = sys.argv[1:]
    print(
        json.dumps(
            {
                "devices": n_devices,
                "one": losses(1, chosen_engine, chosen_backward),
                "all": losses(n_devices, chosen_engine, chosen_backward, int(n_parts)),
            }
        )
    )
