"""The memory of a training step: what is kept for the backward pass, and XLA's peak."""

import concurrent.futures
import dataclasses
import functools
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.memory_options import mib, print_options
from benchmarks.residuals import KINDS, Loss, Residual, layer_kind, residuals
from sparsemlp import (
    ActivationPooling,
    ActivationPruning,
    BlockMasking,
    GradientPruning,
    InputError,
    Plan,
    ResMLP,
    ResNet9,
    Rule,
    parse_block,
    resmlp_cifar10,
    resmlp_imagenet,
    resmlp_s24,
    select_masks,
)
from sparsemlp.blocks import check_ratio, format_block
from sparsemlp.errors import require_known

_MODELS: dict[str, Callable[..., ResMLP | ResNet9]] = {
    "resmlp_cifar10": resmlp_cifar10,
    "resmlp_imagenet": resmlp_imagenet,
    "resmlp_s24": resmlp_s24,
    "resnet9": ResNet9,
}
_WINDOW = (2, 2)


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory of a training step: dense, with each rule, and with the options that save some."""

    model: str = "resmlp_cifar10"
    """resmlp_cifar10, resmlp_imagenet, resmlp_s24 or resnet9. resmlp_s24 has 196 tokens: its token
    mixing keeps its activations whole where the block does not divide them."""
    batch_size: tuple[int, ...] = (128,)
    """Images in a step, one or more."""
    block: str = "8x8"
    """Blocks of activations, ROWSxCOLS: rows over the flattened batch, columns over features."""
    ratio: tuple[float, ...] = (0.5, 0.8)
    """Fractions of blocks of activations to drop, in (0, 1)."""
    show: Literal["all", "rules", "options"] = "all"
    """The tables: the rules for activations, gradients and weights; the training program's options
    --remat, --accumulate, --ema and --precision; or both."""
    layers: bool = False
    """Also say what each kind of layer keeps, of which kind."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to train a model: its plan, and whether blocks are computed again."""

    plan: Plan
    remat: bool = False


class Row(NamedTuple):
    """What is known of a variant, in bytes; the allocator's peak on a GPU alone."""

    kept: int
    planned: int
    allocated: int | None


def measure_memory(options: Annotated[Memory, tyro.conf.arg(name="")]) -> None:
    """The memory of a training step, dense, with the rules and with the options that save some."""
    # This process must leave a GPU's memory to those that measure its allocator.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    require_known(f"--model={options.model}", options.model, _MODELS)
    if not options.batch_size or not options.ratio:
        raise InputError("--batch-size and --ratio need a value each, one or more")
    for batch in options.batch_size:
        if batch < 1:
            raise InputError(f"--batch-size={batch} is no number of images: at least 1")
    compared = variants(options)
    if options.show != "options":
        # A block that does not fit says so before anything is computed.
        pruned = next(a for name, a in compared.items() if name.startswith("activations"))
        for batch in options.batch_size:
            loss, *shapes = _step(options.model, pruned, batch)
            jax.eval_shape(jax.grad(loss), *shapes)
    for batch in options.batch_size:
        if options.show != "rules":
            print_options(options.model, _MODELS[options.model], batch)
        if options.show == "options":
            continue
        rows: dict[str, Row] = {}
        kept: dict[str, list[Residual]] = {}
        for name, variant in compared.items():
            make = functools.partial(_step, options.model, variant, batch)
            kept[name] = residuals(*make())
            n_bytes = sum(residual.n_bytes for residual in kept[name])
            rows[name] = Row(n_bytes, peak_bytes(*make()), in_a_process_of_its_own(make))
        _print(f"{options.model}, batch {batch}, float32, loss and gradients", rows)
        if options.layers:
            print_layers(kept)


def variants(options: Memory) -> dict[str, Variant]:
    """What is compared, by name; the dense model first."""
    block = parse_block(options.block)
    for ratio in options.ratio:
        check_ratio(ratio)
        if ratio == 0:
            raise InputError("--ratio=0 is the dense baseline itself: choose ratios in (0, 1)")
    model = _MODELS[options.model]()
    tokens = (model.image_size // model.patch_size) ** 2 if isinstance(model, ResMLP) else 0

    def everywhere(*rules: Rule, on_tokens: bool = True) -> Plan:
        if not isinstance(model, ResMLP):
            return {"conv_[2-8]/kernel": rules}
        plan: dict[str, Any] = {"*/XChannel?/kernel": rules}
        return plan | {"*/XPatch/kernel": rules} if on_tokens else plan

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


def _step(name: str, variant: Variant, batch: int) -> tuple[Loss, Any, Any]:
    """The loss of a batch, and the shapes of the parameters and images that it takes."""
    model = _MODELS[name](plan=variant.plan, remat=variant.remat)
    shape = (batch, model.image_size, model.image_size, model.channels)
    images = jax.ShapeDtypeStruct(shape, jnp.float32)
    variables = jax.eval_shape(model.init, jax.random.key(0), images)
    stats = jax.tree.map(lambda s: np.ones(s.shape, s.dtype), variables.get("batch_stats", {}))

    def loss(params: Any, images: Any) -> Any:
        masks = select_masks(params, model.plan)
        own = {"params": params, "masks": masks, "batch_stats": stats}
        logits: Any = model.apply(own, images, train=True)
        return jnp.mean(jnp.square(logits))

    return loss, variables["params"], images


def peak_bytes(loss: Loss, params: Any, images: Any) -> int:
    """Bytes of temporary memory of the compiled loss and gradients, by XLA's own plan."""
    compiled = jax.jit(jax.value_and_grad(loss)).lower(params, images).compile()
    analysis: Any = compiled.memory_analysis()
    return analysis.temp_size_in_bytes


def allocated_bytes(make: Callable[[], tuple[Loss, Any, Any]]) -> int | None:
    """The most memory that was ever taken from the device, after one step; None if nobody counts.

    Of everything that this process did, so it has to do nothing else.
    """
    loss, *shapes = make()
    params, images = jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), shapes)
    jax.block_until_ready(jax.jit(jax.value_and_grad(loss))(params, images))
    statistics = jax.devices()[0].memory_stats()
    return None if statistics is None else statistics["peak_bytes_in_use"]


def in_a_process_of_its_own(make: Callable[[], tuple[Loss, Any, Any]]) -> int | None:
    """`allocated_bytes` in a new process, on a GPU; None elsewhere, where nobody counts."""
    if jax.default_backend() != "gpu":
        return None
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(allocated_bytes, make).result()


def _print(title: str, rows: Mapping[str, Row]) -> None:
    caption = f"planned: temporary memory as XLA for {jax.default_backend()} plans it"
    table = Table(title=title, caption=caption)
    headings = ["kept", "planned peak"]
    if any(row.allocated is not None for row in rows.values()):
        headings.append("allocator's peak")
    table.add_column("variant")
    for heading in headings:
        table.add_column(f"{heading} MiB", justify="right")
        table.add_column("of dense", justify="right")
    dense = rows["dense"]
    for name, row in rows.items():
        cells = []
        for own, whole in zip(row, dense, strict=True):
            if own is not None and whole is not None:
                cells += [mib(own), f"{own / whole:.0%}"]
        table.add_row(name, *cells)
    Console().print(table)


def print_layers(kept: Mapping[str, Sequence[Residual]]) -> None:
    """Prints what each kind of layer keeps, in MiB, a column for each kind of array."""
    for name, found in kept.items():
        sums: Counter[tuple[str, str]] = Counter()
        for residual in found:
            sums[layer_kind(residual.layer), residual.kind] += residual.n_bytes
        table = Table(title=f"{name}: kept MiB", min_width=60)
        table.add_column("layer")
        kinds = [kind for kind in KINDS if any(key[1] == kind for key in sums)]
        for kind in kinds:
            table.add_column(kind, justify="right")
        for layer in dict.fromkeys(layer for layer, _ in sums):
            table.add_row(layer, *(mib(sums[layer, kind]) for kind in kinds))
        Console().print(table)
