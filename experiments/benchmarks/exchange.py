"""What devices exchange in a training step, read from the compiled program."""

import dataclasses
import re
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import tyro
from cost_tables.model_shapes import MODELS as PRESETS
from rich.console import Console
from rich.table import Table

from benchmarks.dropping import check_drops
from sparsemlp import InputError, parse_block
from sparsemlp.blocks import format_block
from sparsemlp.distributed.parallel import data_mesh
from sparsemlp.errors import require_known
from sparsemlp.mask_trees import select_masks
from sparsemlp.rules import BlockMasking, check_backward
from sparsemlp.train.augment import Augmentation
from sparsemlp.train.forward_backward import loss_and_gradients
from sparsemlp.train.optimizer import adam_with_l2
from sparsemlp.train.train_state import Program

_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_SHAPE = re.compile(r"\b(pred|[subf]+\d+)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Exchange:
    """The bytes that devices exchange for the gradients of a step, from the compiled program."""

    model: str = "resmlp_imagenet"
    """A preset: resmlp_cifar10, resmlp_imagenet, resmlp_s12, resmlp_s24, resmlp_s36, resmlp_b24."""
    block: str = "32x32"
    """Block of the mask, ROWSxCOLS."""
    ratio: float = 0.8
    """Fraction of blocks to drop, in (0, 1)."""
    mask_layers: str = "*/X*/kernel"
    """Plan pattern of the kernels to mask; "*/XChannel?/kernel" for the channel linears."""
    devices: int = 4
    """Devices; JAX_NUM_CPU_DEVICES=N makes N of a CPU. Nothing is run."""
    images: int = 2
    """Images on each device; the gradients are as large for any number."""


def measure_exchange(options: Annotated[Exchange, tyro.conf.arg(name="")]) -> None:
    """The bytes that devices exchange for the gradients of a step, from the compiled program."""
    if options.images < 1:
        raise InputError(f"--images={options.images} must be at least 1")
    if not 0 < options.ratio < 1:
        raise InputError(f"--ratio={options.ratio:g} is not in (0, 1): 0 is the dense model itself")
    if options.devices < 2:
        raise InputError(f"--devices={options.devices} exchange nothing: choose at least 2")
    require_known(f"--model={options.model}", options.model, PRESETS)
    if jax.default_backend() == "cpu" and len(jax.devices()) < options.devices:
        raise InputError(
            f"--devices={options.devices}: JAX sees {len(jax.devices())}; set "
            f"JAX_NUM_CPU_DEVICES={options.devices} to make them of a CPU"
        )
    table = Table(title=f"{options.model}, {options.devices} devices, gradients of a step")
    for heading in ("", "bytes a device", "of dense"):
        table.add_column(heading, justify="right" if heading else "left")
    block, ratio = parse_block(options.block), options.ratio
    dense = exchanged_bytes(options, None)
    table.add_row("dense", f"{dense:,}", "100.0%")
    for backward in ("masked", "straight_through", "dense"):
        rule = BlockMasking(block, ratio, check_backward(backward))
        found = exchanged_bytes(options, rule)
        name = f"{format_block(block)} at {ratio:g}, {backward} backward"
        table.add_row(name, f"{found:,}", f"{found / dense:.1%}")
    Console().print(table)


def exchanged_bytes(options: Exchange, rule: BlockMasking | None) -> int:
    """Bytes of all collectives in the compiled loss and gradients of a step, a device.

    Args:
      options: model and devices.
      rule: how the kernels of `mask_layers` are masked; None is dense.
    """
    plan: Any = {} if rule is None else {options.mask_layers: rule}
    model = PRESETS[options.model](plan=plan, engine="reference")
    batch = options.images * options.devices
    program = Program(
        model=model,
        optimizer=adam_with_l2(lambda step: 0.0, weight_decay=0.0),
        augmentation=Augmentation(),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        seed=0,
        mesh=data_mesh(options.devices, batch),
    )
    size = model.image_size
    images = jax.ShapeDtypeStruct((batch, size, size, 3), jnp.float32)
    targets = jax.ShapeDtypeStruct((batch, model.n_classes), jnp.float32)
    params = jax.eval_shape(lambda x: model.init(jax.random.key(0), x), images)["params"]
    check_drops(params, plan)

    def step(params: Any, images: Any, targets: Any) -> Any:
        masks = select_masks(params, plan)
        key = jax.random.key(0)
        rngs = {"drop_path": key, "gradient": key}
        loss, _, _, gradients = loss_and_gradients(
            program, params, masks, {}, images, targets, rngs
        )
        return loss, gradients

    compiled = jax.jit(step).lower(params, images, targets).compile()
    return collective_bytes(compiled.as_text() or "")


def collective_bytes(program: str) -> int:
    """Bytes of the results of all collectives in a compiled program's text, each counted once."""
    total = 0
    for line in program.splitlines():
        name, equals, rest = line.partition(" = ")
        if not equals or not name.strip():
            continue
        for collective in _COLLECTIVES:
            match = re.search(rf"\s{collective}(?:-start)?\(", rest)
            if match:
                total += sum(
                    _shape_bytes(*shape) for shape in _SHAPE.findall(rest[: match.start()])
                )
    return total


def _shape_bytes(dtype: str, sides: str) -> int:
    bits = 8 if dtype == "pred" else int(re.sub(r"\D", "", dtype))
    elements = 1
    for side in filter(None, sides.split(",")):
        elements *= int(side)
    return elements * bits // 8
