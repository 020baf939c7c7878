"""What a run costs on paper: the models of `costs` for the settings that were trained.

As in the thesis (Bespalov 2025) the masks count from the first step on, dense epochs or not.
"""

import dataclasses

from sparsemlp import costs
from sparsemlp.blocks import Block
from sparsemlp.costs import KINDS, Masking, Shapes
from sparsemlp.plan import masking_for
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
    """Block and ratio of each masked layer kind of a ResMLP."""
    _, plan = model_and_plan(settings)
    rules = {kind: masking_for(plan, ("block_0", kind, "kernel")) for kind in KINDS}
    return {kind: (rule.block, rule.ratio) for kind, rule in rules.items() if rule is not None}


def run_costs(run: StudyRun, masking: Masking | None = None) -> RunCosts | None:
    """What a run costs on paper, None where the models do not know it.

    Args:
      run: the run.
      masking: another masking than its own.
    """
    settings, steps = run.settings, run.steps_per_epoch
    shapes = None if settings is None else shapes_of(settings)
    if settings is None or shapes is None or steps is None or not is_constant(settings):
        return None
    length = costs.Run(settings.batch_size, steps, settings.epochs)
    chosen = masking_of(settings) if masking is None else masking
    return RunCosts(
        costs.loaded_elements(shapes, chosen, length),
        costs.thesis_movement_bytes(shapes, chosen, length) / 2**30,
        costs.movement_bytes(shapes, chosen, length) / 2**30,
        costs.thesis_flops(shapes, chosen, length),
        costs.training_flops(shapes, chosen, length),
    )


def dropped_share(shapes: Shapes, kinds: list[str], block: Block, ratio: float) -> float:
    """The share of the weights of the masked layer kinds that a block and a ratio drop."""
    one_step = costs.Run(1, 1, 1)
    empty = costs.loaded_elements(shapes, {}, one_step)
    kept = costs.loaded_elements(shapes, dict.fromkeys(kinds, (block, ratio)), one_step)
    sizes = (shapes.kernel(kind) for kind in kinds)
    maskable = shapes.depth * sum(rows * cols for rows, cols in sizes)
    return (empty - kept) / maskable
