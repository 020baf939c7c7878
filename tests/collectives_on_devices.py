"""Compiles the gradients of a small model on 1, 2 and 4 devices, and prints the bytes exchanged.

    JAX_NUM_CPU_DEVICES=4 python tests/collectives_on_devices.py

prints a JSON object: for each number of devices and each way to mask, the bytes of all collectives
in the compiled program, and those that `step_costs` counts on paper.
"""

import dataclasses
import json
from typing import Any

from benchmarks import exchange as benchmark_exchange
from benchmarks.exchange import Exchange, exchanged_bytes

from sparsemlp import resmlp_cifar10
from sparsemlp.cost_models import step_costs
from sparsemlp.cost_models.costs import KINDS, Shapes
from sparsemlp.rules import BlockMasking, check_backward

BLOCK, RATIO = (4, 8), 0.6
SIZES: dict[str, Any] = {"image_size": 16, "dim": 16, "depth": 1, "expansion": 2}


def tiny(**changes: Any) -> Any:
    """A preset of a few thousand parameters."""
    return resmlp_cifar10(**(SIZES | changes))


def both(devices: int, backward: str) -> tuple[int, int]:
    """Bytes in the compiled program, and counted on paper; `none` is no mask."""
    options = Exchange(model="tiny", devices=devices)
    model = tiny()
    shapes = Shapes(*(getattr(model, field.name) for field in dataclasses.fields(Shapes)))
    if backward == "none":
        return exchanged_bytes(options, None), step_costs.exchanged_bytes(shapes, {}, "masked")
    mode = check_backward(backward)
    compiled = exchanged_bytes(options, BlockMasking(BLOCK, RATIO, mode))
    masking = dict.fromkeys(KINDS, (BLOCK, RATIO))
    return compiled, step_costs.exchanged_bytes(shapes, masking, mode)


if __name__ == "__main__":
    benchmark_exchange.PRESETS["tiny"] = tiny
    cases = [(4, backward) for backward in ("none", "masked", "straight_through", "dense")]
    cases += [(2, "masked"), (1, "masked")]
    print(json.dumps([[devices, how, *both(devices, how)] for devices, how in cases]))
