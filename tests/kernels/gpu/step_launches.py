"""Compiles training steps for an H200 that is not there, and counts what one step launches.

Run as a program, in a process of its own: `step_launches.py FILE.json`. A small model on a GPU
waits for the start of its kernels more than for their work: their number is what masking may cost.
"""

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine_code import TARGETS

_NO_KERNEL = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while"}
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) [^\n]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_OPERATION = re.compile(r"^  (?:ROOT )?%?[\w.\-]+ = .*? ([a-z][a-z\-]*)\(", re.MULTILINE)


CASES = (
    ("reference", 2, False),
    ("reference", 4, False),
    ("reference", 2, True),
    ("triton", 2, True),
    ("triton", 4, True),
    ("mosaic", 2, True),
    ("mosaic", 4, True),
)
"""Engine, depth and whether masked, of the steps that are compiled."""


def key(engine: str, depth: int, *, masked: bool) -> str:
    """What a step is called in the file."""
    return f"{engine if masked else 'dense'} of depth {depth}"


def count_in_process(folder: Path) -> dict[str, Any]:
    """What `_main` counts, by a process that looks for NVIDIA's assembler in its package."""
    spec = importlib.util.find_spec("nvidia.cu13")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    environment = {
        "CUDA_ROOT": next(iter(spec.submodule_search_locations)),
        "JAX_PLATFORMS": "cpu",
        # There is nothing to time the products on.
        "XLA_FLAGS": "--xla_gpu_autotune_level=0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, __file__, str(folder / "found.json")],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "found.json").read_text())


def launches(text: str) -> dict[str, int]:
    """What one turn of the largest loop of a compiled program launches.

    Args:
      text: the program, as XLA prints it.

    Returns:
      `kernels`, and `loops`: those inside it, each of whose turns asks the host.
    """
    bodies = dict(_COMPUTATION.findall(text))
    turns = [bodies[name] for name in re.findall(r" while\(.*body=%?([\w.\-]+)", text)]
    operations = max((_OPERATION.findall(body) for body in turns), key=len)
    return {
        "kernels": sum(operation not in _NO_KERNEL for operation in operations),
        "loops": operations.count("while"),
    }


def _main(path: Path) -> None:
    import jax
    import jax.numpy as jnp
    from cost_tables.one_step import random_images
    from jax.experimental import topologies
    from jax.sharding import NamedSharding, PartitionSpec

    from sparsemlp.configuration.config import Config
    from sparsemlp.configuration.program import build_program
    from sparsemlp.configuration.settings import resolve
    from sparsemlp.train.train_state import initial_state
    from sparsemlp.train.training import train_steps

    topology = topologies.get_topology_desc(
        platform="cuda", target_config=TARGETS["sm_90a"], topology="1x1x1"
    )
    mesh = topologies.make_mesh(topology, (1,), ("x",))
    whole = NamedSharding(mesh, PartitionSpec())
    # The kernels of a GPU are lowered where there is none.
    jax.default_backend = lambda: "gpu"
    found = {}
    for engine, depth, masked in CASES:
        config = Config(
            block="32x32", ratio=0.8, engine=engine, depth=depth, dim=128, precision="bfloat16"
        )
        settings = resolve(config, "noise")
        dataset = random_images(2 * settings.batch_size, 32, 10)
        program = build_program(settings, dataset)
        given: Any = (
            jax.eval_shape(functools.partial(initial_state, program)),
            *(dataset.train_images, dataset.train_labels),
            *(jnp.zeros(dataset.n_train, jnp.int32), jnp.int32(0), jnp.int32(0)),
        )
        shapes = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=whole), given
        )
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            lowered = train_steps.lower(
                program, *shapes, batch_size=settings.batch_size, masked=masked
            )
        text = str(lowered.compile().as_text())
        found[key(engine, depth, masked=masked)] = launches(text)
    path.write_text(json.dumps(found))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
