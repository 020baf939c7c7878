"""What a run costs on paper: the models of `costs` for the settings that were trained.

As in the thesis (Bespalov 2025) the masks count from the first step on, dense epochs or not.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from sparsemlp import costs
from sparsemlp.blocks import Block
from sparsemlp.budgets import share_out, with_ratios
from sparsemlp.costs import KINDS, Masking, Shapes
from sparsemlp.plan import Plan, masked_kernels, masking_for
from sparsemlp.settings import Settings, model_and_plan
from sparsemlp.study_run import StudyRun

_IMAGES = {"cifar10": (32, 3, 10), "digits": (32, 3, 10)}
"""Side, channels and classes of the data sets whose names say them."""


@dataclasses.dataclass(frozen=True)
class RunCosts:
    """Theoretical costs of a whole run.

    Attributes:
      loaded_elements: weights that the forward passes load.
      thesis_movement_gb: GB (2^30 bytes) moved by the forward passes, as the thesis counts them.
      movement_gb: the same with the activations of all tokens, not of one.
      thesis_flops: FLOPs as the thesis counts them, one image an epoch, forward.
      training_flops: FLOPs of all images, forward and backward, of kept blocks.
    """

    loaded_elements: int
    thesis_movement_gb: float
    movement_gb: float
    thesis_flops: float
    training_flops: int


def shapes_of(settings: Settings) -> Shapes | None:
    """The sizes of the model, None where the cost models do not know it: only ResMLP."""
    if settings.model != "resmlp" or settings.dataset not in _IMAGES:
        return None
    size, channels, n_classes = _IMAGES[settings.dataset]
    depth, _ = model_and_plan(settings)
    patch, dim, expansion = settings.patch_size, settings.dim, settings.expansion
    if depth is None or patch is None or dim is None or expansion is None:
        return None
    return Shapes(size, patch, channels, dim, depth, expansion, n_classes)


def is_constant(settings: Settings) -> bool:
    """Whether all masked layers have the same ratio in all masked steps, as the models assume."""
    return settings.budget == "uniform" and settings.ratio_schedule == "constant"


def masking_of(settings: Settings) -> Masking:
    """Block and ratio of each masked layer kind of a ResMLP, before a budget shares them out."""
    return _masking(model_and_plan(settings)[1], "block_0")


def _masking(plan: Plan, block: str) -> Masking:
    rules = {kind: masking_for(plan, (block, kind, "kernel")) for kind in KINDS}
    return {kind: (rule.block, rule.ratio) for kind, rule in rules.items() if rule is not None}


def maskings_of(run: StudyRun) -> list[Masking] | None:
    """Block and ratio of each masked layer kind, for each block of the network where they differ.

    Returns:
      One masking for all blocks with the budget `uniform`, else one for each. None: not known,
      because there is no model of it, the ratio changes over the epochs, or masking with a global
      budget has not begun.
    """
    settings = run.settings
    shapes = None if settings is None else shapes_of(settings)
    if settings is None or shapes is None or settings.ratio_schedule != "constant":
        return None
    if settings.budget == "uniform":
        return [masking_of(settings)]
    _, plan = model_and_plan(settings)
    kernels = {
        kind: {"kernel": jax.ShapeDtypeStruct(shapes.kernel(kind), "float32")} for kind in KINDS
    }
    blocks = [f"block_{index}" for index in range(shapes.depth)]
    params = dict.fromkeys(blocks, kernels)
    if settings.budget == "global":
        masked = {path for path, _, _ in masked_kernels(params, plan)}
        if not masked <= set(run.layer_ratios):
            return None
        plan = with_ratios(params, plan, run.layer_ratios)
    else:
        plan = share_out(params, plan, "erk")
    return [_masking(plan, block) for block in blocks]


def run_costs(run: StudyRun, masking: Masking | None = None) -> RunCosts | None:
    """What a run costs on paper, None where the models do not know it.

    Args:
      run: the run.
      masking: another masking than its own.
    """
    settings, steps = run.settings, run.steps_per_epoch
    shapes = None if settings is None else shapes_of(settings)
    maskings = maskings_of(run) if masking is None else [masking]
    if settings is None or shapes is None or steps is None or maskings is None:
        return None
    length = costs.Run(settings.batch_size, steps, settings.epochs)

    def mean(model: Callable[..., Any]) -> Any:
        """Exact: of the blocks of the network a model takes the sum of each one's own."""
        found = [model(shapes, each, length) for each in maskings]
        total = sum(found)
        return total // len(found) if isinstance(total, int) else total / len(found)

    return RunCosts(
        mean(costs.loaded_elements),
        mean(costs.thesis_movement_bytes) / 2**30,
        mean(costs.movement_bytes) / 2**30,
        mean(costs.thesis_flops),
        mean(costs.training_flops),
    )


def dropped_share(shapes: Shapes, kinds: list[str], block: Block, ratio: float) -> float:
    """The share of the weights of the masked layer kinds that a block and a ratio drop."""
    one_step = costs.Run(1, 1, 1)
    empty = costs.loaded_elements(shapes, {}, one_step)
    kept = costs.loaded_elements(shapes, dict.fromkeys(kinds, (block, ratio)), one_step)
    sizes = (shapes.kernel(kind) for kind in kinds)
    maskable = shapes.depth * sum(rows * cols for rows, cols in sizes)
    return (empty - kept) / maskable
