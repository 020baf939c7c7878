"""What the options of the training program that save memory save: a table of one model and batch.

Each row is the program that trains with these options: what the forward pass leaves to the backward
pass, the temporary memory that XLA plans for loss and gradients, and what stays from step to step.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.core import FrozenDict
from rich.console import Console
from rich.table import Table

from benchmarks.residuals import saved_bytes
from sparsemlp import BlockMasking, Plan, ResMLP, ResNet9
from sparsemlp.mask_trees import select_masks
from sparsemlp.train.augment import Augmentation
from sparsemlp.train.forward_backward import loss_and_gradients
from sparsemlp.train.losses import cross_entropy
from sparsemlp.train.optimizer import adam_with_l2
from sparsemlp.train.train_state import Program, initial_state

_DECAY = 0.999
_MASKING = BlockMasking((32, 32), 0.8)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Options of a training run, as in `sparsemlp.configuration.config.Config`."""

    remat: bool = False
    accumulate: int = 1
    ema: float = 0.0
    precision: str = "float32"


class Bytes(NamedTuple):
    """The memory of a run in bytes.

    Attributes:
      kept: what the forward pass leaves to the backward pass, of the images that are computed at
        once.
      planned: temporary memory of loss and gradients of a batch, as XLA plans it.
      state: parameters, moments of Adam, and the average of the parameters if there is one.
    """

    kept: int
    planned: int
    state: int


def option_rows(model: ResMLP | ResNet9) -> dict[str, Chosen]:
    """The options that are compared, by name; a model with batch statistics takes no parts."""
    rows = {"as it is": Chosen(), "remat": Chosen(remat=True)}
    if isinstance(model, ResMLP):
        rows |= {f"accumulate {parts}": Chosen(accumulate=parts) for parts in (2, 4)}
        rows["remat, accumulate 4"] = Chosen(remat=True, accumulate=4)
    rows[f"ema {_DECAY}"] = Chosen(ema=_DECAY)
    rows["bfloat16"] = Chosen(precision="bfloat16")
    if isinstance(model, ResMLP):
        chosen = Chosen(remat=True, accumulate=4, precision="bfloat16")
        rows["remat, accumulate 4, bfloat16"] = chosen
    return rows


def option_plans(model: ResMLP | ResNet9) -> dict[str, Plan]:
    """The dense model and, where the blocks divide its tokens, one with masked weights."""
    plans: dict[str, Plan] = {"dense": {}}
    if isinstance(model, ResMLP) and (model.image_size // model.patch_size) ** 2 % 32 == 0:
        plans["32x32 at 0.8"] = {"*/X*/kernel": _MASKING}
    return plans


def print_options(name: str, make: Callable[..., ResMLP | ResNet9], batch: int) -> None:
    """Prints what each option saves, dense and masked.

    Args:
      name: of the model.
      make: the model from its fields.
      batch: images in a step.
    """
    caption = (
        f"peak: temporary memory of loss and gradients, as XLA for {jax.default_backend()} plans "
        "it; state: parameters, moments of Adam, average"
    )
    table = Table(title=f"{name}, batch {batch}, options of the training program", caption=caption)
    table.add_column("", no_wrap=True)
    for heading in ("kept MiB", "of dense", "peak MiB", "of dense", "state MiB"):
        table.add_column(heading, justify="right")
    dense: Bytes | None = None
    for masking, plan in option_plans(make()).items():
        for option, chosen in option_rows(make()).items():
            found = measure(make, plan, chosen, batch)
            dense = dense or found
            named = f"  {option}" if chosen != Chosen() else masking
            cells = [named, mib(found.kept), f"{found.kept / dense.kept:.0%}"]
            cells += [mib(found.planned), f"{found.planned / dense.planned:.0%}"]
            table.add_row(*cells, mib(found.state))
        table.add_section()
    Console().print(table)


def measure(make: Callable[..., ResMLP | ResNet9], plan: Plan, chosen: Chosen, batch: int) -> Bytes:
    """The memory of a run with these options; it is compiled and not run.

    Args:
      make: the model from its fields.
      plan: which parameter gets which rules.
      chosen: the options.
      batch: images in a step.
    """
    program = _program(make, plan, chosen, batch)
    state = jax.eval_shape(lambda: initial_state(program))
    held = (state.params, state.optimizer, state.average)
    without_average = dataclasses.replace(chosen, ema=0.0)
    kept, planned = _working_bytes(make, FrozenDict(plan), without_average, batch)
    return Bytes(kept, planned, _n_bytes(held))


@functools.cache
def _working_bytes(
    make: Callable[..., ResMLP | ResNet9], plan: FrozenDict[str, Any], chosen: Chosen, batch: int
) -> tuple[int, int]:
    """What is kept for the backward pass, and the planned temporary memory."""
    program = _program(make, plan, chosen, batch)
    state = jax.eval_shape(lambda: initial_state(program))
    model, key = program.model, jax.random.key(0)
    rngs = {"drop_path": key, "gradient": key}
    stats = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), state.batch_stats)

    def shapes(n_images: int) -> Any:
        side = model.image_size
        return jax.ShapeDtypeStruct((n_images, side, side, model.channels), jnp.float32)

    def loss(params: Any, images: Any) -> Any:
        masks = select_masks(params, model.plan)
        variables = {"params": params, "masks": masks, "batch_stats": stats}
        logits, _ = program.train_logits(variables, images, rngs)
        return jnp.mean(cross_entropy(logits, jnp.full_like(logits, 1 / model.n_classes)))

    def step(params: Any, images: Any, targets: Any) -> Any:
        masks = select_masks(params, model.plan)
        return loss_and_gradients(program, params, masks, stats, images, targets, rngs)

    targets = jax.ShapeDtypeStruct((batch, model.n_classes), jnp.float32)
    compiled = jax.jit(step).lower(state.params, shapes(batch), targets).compile()
    analysis: Any = compiled.memory_analysis()
    kept = saved_bytes(loss, state.params, shapes(program.images_at_once(batch)))
    return kept, analysis.temp_size_in_bytes


def _program(
    make: Callable[..., ResMLP | ResNet9], plan: Mapping[str, Any], chosen: Chosen, batch: int
) -> Program:
    model = make(plan=plan, remat=chosen.remat, dtype=jnp.dtype(chosen.precision))
    third = (1 / 3,) * 3
    return Program(
        model=model,
        optimizer=adam_with_l2(lambda step: 1e-3, weight_decay=1e-4),
        augmentation=Augmentation(),
        mean=third,
        std=third,
        seed=0,
        at_once=math.ceil(batch / chosen.accumulate),
        ema=chosen.ema,
    )


def _n_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def mib(n_bytes: int) -> str:
    """A size in MiB, with so many digits that small ones show."""
    if not n_bytes:
        return "-"
    return f"{n_bytes / 2**20:.1f}" if n_bytes >= 2**19 else f"{n_bytes / 2**20:.3f}"
