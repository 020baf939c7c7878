"""The masks of one step or evaluation of a program."""

from collections.abc import Callable
from typing import Any

from sparsemlp.dynamics import Memory, remember_unmasked, select_dynamic_masks
from sparsemlp.mask_trees import Masks
from sparsemlp.train.train_state import Program

MasksOf = Callable[[Any], Masks]
"""What selects the masks from the parameters alone."""


def step_masks(
    program: Program, params: Any, memory: Memory, *, masked: bool, masks_of: MasksOf | None
) -> tuple[Masks, Memory]:
    """Selects the masks, and remembers what the next selection has to know of this one.

    Args:
      program: what is trained.
      params: parameters of its model.
      memory: what the selection before remembered.
      masked: whether weights are masked.
      masks_of: what selects the masks; by default the model's plan and the dynamics do.

    Returns:
      The masks, none if weights are dense, and the memory.
    """
    plan, dynamics, engine = program.model.plan, program.dynamics, program.model.engine
    if not masked:
        return {}, remember_unmasked(params, plan, dynamics, memory, engine)
    if masks_of is not None:
        return masks_of(params), memory
    return select_dynamic_masks(
        params, plan, dynamics, memory, frozen=program.frozen, engine=engine
    )
