"""What the masks of a training step cost: scores of blocks, the choice, the lists of kernels."""

import dataclasses
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.dropping import check_drops
from benchmarks.timing import Contender, describe_machine, repeated, steps_in_a_turn, take_turns
from sparsemlp import BlockMasking, InputError, ResMLP, parse_block, presets, select_masks
from sparsemlp.engines import check_engine
from sparsemlp.errors import require_known
from sparsemlp.files import Record, check_writable, make_folder, write_json
from sparsemlp.mask_trees import Masks, flatten_masks, list_masks
from sparsemlp.masks import Mask
from sparsemlp.planned_kernels import masked_kernels
from sparsemlp.runs.environment import describe_environment
from sparsemlp.selection import block_scores

_TOLERANCE = 1e-5
"""By which sums of float32 in another order may differ, as a share of the largest score."""
MODELS = ("resmlp_cifar10", "resmlp_imagenet", "resmlp_s12", "resmlp_s24", "resmlp_b24")


@dataclasses.dataclass(frozen=True)
class Selection:
    """What scores, choice and lists of blocks cost beside loss and gradients of a batch."""

    model: str = "resmlp_imagenet"
    """resmlp_cifar10, resmlp_imagenet, resmlp_s12, resmlp_s24 or resmlp_b24; all layers are masked
    where blocks divide the tokens, else those over channels."""
    block: str = "32x32"
    """Block of the mask, ROWSxCOLS: rows over outputs, columns over inputs."""
    ratio: float = 0.8
    """Fraction of blocks to drop, in (0, 1)."""
    score: str = "l2"
    """Score of a block: l1, l2, spectral."""
    engine: str = "auto"
    """Who computes the products, and the scores where it has a kernel for them."""
    batch_size: int = 128
    """Images in a step."""
    rounds: int = 9
    """How often each contender takes its turn; medians are over these."""
    out: Path | None = None
    """JSON file for all numbers; it is overwritten."""


def measure_selection(options: Annotated[Selection, tyro.conf.arg(name="")]) -> None:
    """What scores, choice and lists of blocks cost beside loss and gradients of a batch."""
    if options.out is not None:
        make_folder(options.out.parent)
        check_writable(options.out, f"--out={options.out}")
    record = selection_costs(options)
    medians, shares = record["median_ms"], record["share_of_step"]
    table = Table(
        title=f"{options.model}, {options.block} at {options.ratio:g}, {options.score}, engine "
        f"{options.engine}, batch {options.batch_size}: what masks cost",
        caption="step: selection, loss and gradients, without the optimizer\n"
        + describe_machine(record["environment"]),
    )
    table.add_column("part")
    table.add_column("median ms", justify="right")
    table.add_column("of a step", justify="right")
    for name, milliseconds in medians.items():
        table.add_row(name, f"{milliseconds:.3f}", f"{100 * shares[name]:.2f}%")
    Console(width=100).print(table)
    if options.out is not None:
        write_json(options.out, record)


def selection_costs(options: Selection) -> Record:
    """Measures the parts of the selection in turns with a whole step.

    Returns:
      `median_ms` and `share_of_step` of `scores` (the score of every block), `masks` (scores, the
      largest k and their order: all of `select_masks`), `lists` (kept blocks by rows and by
      columns, as kernels take them) and `step` (selection, loss and gradients of a batch); the
      options, and the environment.

    Raises:
      InputError: the model or the engine is unknown, the block or the ratio will not do, or the
        engine scores blocks wrongly on this device.
    """
    model = build_model(options)
    contenders = parts(model, options)
    steps = {name: steps_in_a_turn(run) for name, run in contenders.items()}
    seconds = take_turns(contenders, options.rounds, steps)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "options": dataclasses.asdict(options) | {"out": None},
        "median_ms": {name: 1e3 * median for name, median in medians.items()},
        "share_of_step": {name: median / medians["step"] for name, median in medians.items()},
        "environment": describe_environment(),
    }


def build_model(options: Selection) -> ResMLP:
    """The model of the options, masked.

    Raises:
      InputError: as `selection_costs`.
    """
    require_known(f"--model={options.model}", options.model, MODELS)
    if options.ratio == 0:
        raise InputError("--ratio=0 selects nothing: choose a ratio in (0, 1)")
    if options.rounds < 1 or options.batch_size < 1:
        raise InputError("--rounds and --batch-size must be at least 1")
    check_engine(options.engine)
    rule = BlockMasking(parse_block(options.block), options.ratio, score=options.score)
    preset = getattr(presets, options.model)
    plain: ResMLP = preset()
    tokens = (plain.image_size // plain.patch_size) ** 2
    plan: dict[str, Any] = {"*/XChannel?/kernel": rule}
    if all(tokens % side == 0 for side in rule.block):
        plan["*/XPatch/kernel"] = rule
    return preset(plan=plan, engine=options.engine)


def parts(model: ResMLP, options: Selection) -> dict[str, Contender]:
    """What is measured, by name.

    Raises:
      InputError: the engine scores blocks wrongly on this device.
    """
    plan, engine = model.plan, options.engine
    shape = (options.batch_size, model.image_size, model.image_size, model.channels)
    images = jax.random.normal(jax.random.key(1), shape)
    params = jax.jit(model.init)(jax.random.key(0), images[:1])["params"]
    check_drops(params, plan)
    masks = jax.jit(lambda params: select_masks(params, plan, engine))(params)

    def scores(params: Any, engine: str = engine) -> dict[str, Any]:
        return {
            path: block_scores(kernel, rule.block, rule.score, path, engine)
            for path, kernel, rule in masked_kernels(params, plan)
        }

    right = jax.jit(lambda params: scores(params, "reference"))(params)
    check_scores(engine, jax.jit(scores)(params), right)

    def step(arrays: Any) -> Any:
        def loss(params: Any, images: Any) -> Any:
            own = {"params": params, "masks": select_masks(params, plan, engine)}
            logits: Any = model.apply(own, images, train=True)
            return jnp.mean(jnp.square(logits))

        return jax.value_and_grad(loss)(*arrays)

    return {
        "scores": repeated(scores, params),
        "masks": repeated(lambda params: select_masks(params, plan, engine), params),
        "lists": repeated(block_lists, masks),
        "step": repeated(step, (params, images)),
    }


def check_scores(engine: str, found: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    """Raises InputError if an engine scores the blocks of a kernel otherwise than `reference`."""
    for path, scores in right.items():
        off = float(jnp.max(jnp.abs(found[path] - scores)) / jnp.max(jnp.abs(scores)))
        if not off <= _TOLERANCE:
            raise InputError(
                f"--engine={engine} is wrong on this device and is not timed: its scores of "
                f"{path} are off by {off:.1e} of the largest"
            )


def block_lists(masks: Masks) -> list[Mask]:
    """The masks with the lists of their kept blocks, as the kernels of a GPU take them."""
    return list(list_masks(flatten_masks(masks), "mosaic").values())
