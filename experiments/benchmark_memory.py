"""The memory of a training step: what is kept for the backward pass, and XLA's peak."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.table import Table

from sparsemlp import (
    ActivationPooling,
    ActivationPruning,
    BlockMasking,
    GradientPruning,
    InputError,
    Plan,
    ResMLP,
    Rule,
    parse_block,
    resmlp_cifar10,
    resmlp_imagenet,
    resmlp_s24,
    select_masks,
)
from sparsemlp.blocks import check_ratio, format_block

_MODELS = {
    "resmlp_cifar10": resmlp_cifar10,
    "resmlp_imagenet": resmlp_imagenet,
    "resmlp_s24": resmlp_s24,
}
_WINDOW = (2, 2)


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory of loss and gradients: dense, with each rule, and with jax.checkpoint."""

    model: str = "resmlp_cifar10"
    """resmlp_cifar10, resmlp_imagenet or resmlp_s24. The last has 196 tokens: its token mixing
    keeps its activations whole where the block does not divide them."""
    batch_size: tuple[int, ...] = (128,)
    """Images in a step, one or more."""
    block: str = "8x8"
    """Blocks of activations, ROWSxCOLS: rows over the flattened batch, columns over features."""
    ratio: tuple[float, ...] = (0.5, 0.8)
    """Fractions of blocks of activations to drop, in (0, 1)."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to train a model: its plan, and whether blocks are computed again."""

    plan: Plan
    remat: bool = False


def measure_memory(options: Annotated[Memory, tyro.conf.arg(name="")]) -> None:
    """The memory of loss and gradients, dense and with the rules for activations."""
    if options.model not in _MODELS:
        raise InputError(f"--model={options.model} is unknown: choose one of {', '.join(_MODELS)}")
    if not options.batch_size or not options.ratio:
        raise InputError("--batch-size and --ratio need a value each, one or more")
    for batch in options.batch_size:
        if batch < 1:
            raise InputError(f"--batch-size={batch} is no number of images: at least 1")
    for batch in options.batch_size:
        rows = {
            name: (saved_bytes(*step), peak_bytes(*step))
            for name, v in variants(options).items()
            for step in [_step(_MODELS[options.model](plan=v.plan, remat=v.remat), batch)]
        }
        _print(f"{options.model}, batch {batch}, float32, loss and gradients", rows)


def variants(options: Memory) -> dict[str, Variant]:
    """What is compared, by name; the dense model first."""
    block = parse_block(options.block)
    for ratio in options.ratio:
        check_ratio(ratio)
        if ratio == 0:
            raise InputError("--ratio=0 is the dense baseline itself: choose ratios in (0, 1)")
    model = _MODELS[options.model]()
    tokens = (model.image_size // model.patch_size) ** 2

    def everywhere(*rules: Rule, on_tokens: bool = True) -> Plan:
        kept = rules[0] if len(rules) == 1 else rules
        plan: dict[str, Any] = {"*/XChannel?/kernel": kept}
        return plan | {"*/XPatch/kernel": kept} if on_tokens else plan

    def pruned(ratio: float, *others: Rule) -> Plan:
        fits = tokens % block[1] == 0
        return everywhere(ActivationPruning(block, ratio), *others, on_tokens=fits)

    found = {"dense": Variant({}), "jax.checkpoint": Variant({}, remat=True)}
    shown = format_block(block)
    found |= {f"activations {shown} at {r:g}": Variant(pruned(r)) for r in options.ratio}
    found["activations, means of 2x2"] = Variant(everywhere(ActivationPooling(_WINDOW)))
    found["gradients 2:4"] = Variant(everywhere(GradientPruning(2, 4)))
    if tokens % 32 == 0:
        masking, most = BlockMasking((32, 32), 0.8), max(options.ratio)
        found["weights 32x32 at 0.8"] = Variant(everywhere(masking))
        found[f"weights, activations at {most:g}, gradients"] = Variant(
            pruned(most, masking, GradientPruning(2, 4))
        )
    return found


Loss = Callable[[Any, Any], Any]


def _step(model: ResMLP, batch: int) -> tuple[Loss, Any, Any]:
    """The loss of a batch, and the shapes of the parameters and images that it takes."""
    shape = (batch, model.image_size, model.image_size, model.channels)
    images = jax.ShapeDtypeStruct(shape, jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]

    def logits(params: Any, images: Any) -> Any:
        masks = select_masks(params, model.plan)
        return model.apply({"params": params, "masks": masks}, images, train=True)

    return lambda params, images: jnp.mean(jnp.square(logits(params, images))), params, images


def saved_bytes(loss: Loss, params: Any, images: Any) -> int:
    """Bytes that the forward pass leaves to the backward pass, parameters and images apart.

    Counted from the traced program: an array that several operations keep counts once.
    """

    def residuals(params: Any, images: Any) -> list[Any]:
        return jax.tree.leaves(jax.vjp(lambda p: loss(p, images), params)[1])

    program = jax.make_jaxpr(residuals)(params, images).jaxpr
    given = {id(variable) for variable in (*program.invars, *program.constvars)}
    kept: dict[int, Any] = {id(v): v.aval for v in program.outvars if id(v) not in given}
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in kept.values())


def peak_bytes(loss: Loss, params: Any, images: Any) -> int:
    """Bytes of temporary memory of the compiled loss and gradients, by XLA's own plan."""
    compiled = jax.jit(jax.value_and_grad(loss)).lower(params, images).compile()
    analysis: Any = compiled.memory_analysis()
    return analysis.temp_size_in_bytes


def _print(title: str, rows: Mapping[str, tuple[int, int]]) -> None:
    table = Table(
        title=title, caption=f"temporary memory as XLA for {jax.default_backend()} plans it"
    )
    for heading in ("variant", "kept MiB", "of dense", "peak MiB", "of dense"):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    dense = rows["dense"]
    for name, row in rows.items():
        cells = [
            f(v)
            for v, d in zip(row, dense, strict=True)
            for f in (_mib, lambda v, d=d: f"{v / d:.0%}")
        ]
        table.add_row(name, *cells)
    Console().print(table)


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f}"
