"""What a run costs on paper: the models of `costs` for the settings that were trained.

As in the thesis (Bespalov 2025) the masks count from the first step on: dense epochs before them
count as the first masked one.
"""

import collections
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from sparsemlp.blocks import Block, block_grid, n_kept_blocks
from sparsemlp.budgets import share_out, with_ratios
from sparsemlp.configuration.mask_options import mask_schedule
from sparsemlp.configuration.settings import Settings, depth_and_plan
from sparsemlp.cost_models import costs
from sparsemlp.cost_models.costs import KINDS, Masking, Shapes
from sparsemlp.data import OUTLINES
from sparsemlp.errors import InputError
from sparsemlp.plan import Plan, masking_for
from sparsemlp.planned_kernels import masked_kernels
from sparsemlp.rules import check_backward
from sparsemlp.schedule import Phase, backward_at, plan_at
from sparsemlp.studies.study_run import StudyRun


@dataclasses.dataclass(frozen=True)
class RunCosts:
    """Theoretical costs of a whole run.

    Attributes:
      loaded_elements: weights that the forward passes load.
      thesis_movement_gb: GB (2^30 bytes) moved by the forward passes, as the thesis counts them.
      movement_gb: the same with the activations of all tokens, not of one.
      thesis_flops: FLOPs as the thesis counts them, one image an epoch, forward.
      training_flops: FLOPs of all images, forward and backward, as the backward pass has them.
    """

    loaded_elements: int
    thesis_movement_gb: float
    movement_gb: float
    thesis_flops: float
    training_flops: int


def shapes_of(settings: Settings) -> Shapes | None:
    """The sizes of the model, None where the cost models do not know it: only ResMLP."""
    images = OUTLINES.get(settings.dataset)
    if settings.model != "resmlp" or images is None:
        return None
    depth, _ = depth_and_plan(settings)
    patch, dim, expansion = settings.patch_size, settings.dim, settings.expansion
    if depth is None or patch is None or dim is None or expansion is None:
        return None
    return Shapes(images.side, patch, images.channels, dim, depth, expansion, images.n_classes)


def is_constant(settings: Settings) -> bool:
    """Whether all masked layers have the same ratio in all masked steps, as the models assume."""
    return settings.budget == "uniform" and settings.ratio_schedule == "constant"


def masking_of(settings: Settings) -> Masking:
    """Block and ratio of each masked layer kind of a ResMLP, before a budget shares them out."""
    return masking_by_kind(depth_and_plan(settings)[1])


def masking_by_kind(plan: Plan, block: str = "block_0") -> Masking:
    """Block and ratio of each masked layer kind in one block of a ResMLP."""
    rules = {kind: masking_for(plan, f"{block}/{kind}/kernel") for kind in KINDS}
    return {kind: (rule.block, rule.ratio) for kind, rule in rules.items() if rule is not None}


def phases_of(run: StudyRun) -> Mapping[Phase, int] | None:
    """How many epochs a run trains in each phase of its masks.

    Dense epochs before the masks count as the first masked one; a run that ends before it begins to
    mask is `DENSE`. None: not known, because an adaptive schedule has not seen all its validation
    losses yet.
    """
    settings = run.settings
    if settings is None:
        return None
    schedule, n_epochs = mask_schedule(settings), settings.epochs
    losses = run.column("validation_loss").tolist()
    if schedule.kind == "adaptive" and len(losses) < min(n_epochs, schedule.freeze or n_epochs) - 1:
        return None
    first = min(schedule.start, n_epochs - 1)
    phases = (schedule.phase(max(epoch, first), losses) for epoch in range(n_epochs))
    return collections.Counter(phases)


def _plans(settings: Settings, shapes: Shapes, run: StudyRun) -> tuple[Plan, list[str]] | None:
    """The plan with the budget shared out, and the blocks of the network that may differ by it.

    None where masking with a global budget has not begun, or nothing could be shared out.
    """
    _, plan = depth_and_plan(settings)
    if settings.budget == "uniform":
        return plan, ["block_0"]
    kernels = {
        kind: {"kernel": jax.ShapeDtypeStruct(shapes.kernel(kind), "float32")} for kind in KINDS
    }
    blocks = [f"block_{index}" for index in range(shapes.depth)]
    params = dict.fromkeys(blocks, kernels)
    if settings.budget == "erk":
        with contextlib.suppress(InputError):
            return share_out(params, plan, "erk"), blocks
        return None
    masked = {path for path, _, _ in masked_kernels(params, plan)}
    if not masked <= set(run.layer_ratios):
        return None
    return with_ratios(params, plan, run.layer_ratios), blocks


def run_costs(run: StudyRun) -> RunCosts | None:
    """What a run costs on paper.

    Returns:
      The costs. None where they are not known: there is no model of it, masking with a global
      budget has not begun, an adaptive schedule has not ended, or a block of a folder from
      elsewhere does not divide its kernel.
    """
    with contextlib.suppress(InputError):
        return _costs(run)
    return None


def _costs(run: StudyRun) -> RunCosts | None:
    settings, steps = run.settings, run.steps_per_epoch
    shapes = None if settings is None else shapes_of(settings)
    if settings is None or shapes is None or steps is None:
        return None
    shared, phases = _plans(settings, shapes, run), phases_of(run)
    if shared is None or phases is None:
        return None
    plan, blocks = shared
    backward = check_backward(settings.backward)
    plans = {phase: plan_at(plan, phase) if phase.masked else {} for phase in phases}

    def total(model: Callable[..., Any], **options: Callable[[Phase], Any]) -> Any:
        """Over the phases; of the blocks of the network, a model takes the mean of each one's."""
        found = 0
        for phase, n_epochs in phases.items():
            length = costs.Run(
                settings.batch_size, steps, n_epochs, images_per_epoch=run.images_per_epoch
            )
            own = {name: option(phase) for name, option in options.items()}
            maskings = [masking_by_kind(plans[phase], block) for block in blocks]
            whole = sum(model(shapes, masking, length, **own) for masking in maskings)
            found += whole // len(blocks) if isinstance(whole, int) else whole / len(blocks)
        return found

    return RunCosts(
        total(costs.loaded_elements),
        total(costs.thesis_movement_bytes) / 2**30,
        total(costs.movement_bytes) / 2**30,
        total(_thesis_flops if settings.budget == "global" else costs.thesis_flops),
        total(costs.training_flops, backward=functools.partial(backward_at, backward)),
    )


def _thesis_flops(shapes: Shapes, masking: Masking, run: costs.Run) -> float:
    """As the thesis counts them, of ratios that stand for a number of blocks and are no shares."""
    shares: dict[str, tuple[Block, float]] = {}
    for kind, (block, ratio) in masking.items():
        n_blocks = math.prod(block_grid(shapes.kernel(kind), block))
        shares[kind] = block, 1 - n_kept_blocks(n_blocks, ratio) / n_blocks
    return costs.thesis_flops(shapes, shares, run)


def dropped_share(shapes: Shapes, kinds: Sequence[str], block: Block, ratio: float) -> float:
    """The share of the weights of the masked layer kinds that a block and a ratio drop."""
    masking = dict.fromkeys(kinds, (block, ratio))
    kept = sum(costs.kept_weights(shapes, kind, masking) for kind in kinds)
    return 1 - kept / sum(math.prod(shapes.kernel(kind)) for kind in kinds)
