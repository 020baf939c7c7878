"""What masks cost beside a training step on a GPU: selection, and the lists of kept blocks."""

from typing import Any

import jax
from tuning.compiled_loops import UNTUNED, Loop, compile_loops
from tuning.device_timing import WARM_SECONDS, time_loops

from sparsemlp import ResMLP, select_masks
from sparsemlp.files import Record
from sparsemlp.mask_trees import flatten_masks, list_masks
from sparsemlp.masks import BlockMask


def compile_selection(model: ResMLP, params: Any, is_trial: bool) -> tuple[Any, int, Any]:
    """Programs that select all masks, and make the lists that kernels take of them.

    Args:
      model: whose plan it is.
      params: of the model, or their shapes.
      is_trial: whether nothing is measured.

    Returns:
      What selects from parameters; repetitions in a loop, and the loops.
    """

    def select(params: Any) -> Any:
        masks = select_masks(params, model.plan, model.engine)
        return [mask.kept for mask in flatten_masks(masks).values()]

    masks = flatten_masks(
        jax.eval_shape(lambda p: select_masks(p, model.plan, model.engine), params)
    )

    def lists(kept: Any) -> Any:
        own = zip(masks.items(), kept, strict=True)
        bare = {path: BlockMask(ids, mask.kernel_shape, mask.block) for (path, mask), ids in own}
        return list(list_masks(bare, "mosaic").values())

    if not masks:
        return None, 0, {}
    functions = {
        "selection_ms": (select, (params,)),
        "metadata_ms": (lists, (jax.eval_shape(select, params),)),
    }
    n_times = 1 if is_trial else 10
    # Each has many kernels.
    loops = compile_loops(functions, n_times, single=functions)
    return jax.jit(select).lower(params).compile(UNTUNED), n_times, loops


def time_selection(
    compiled: tuple[Any, int, Any], params: Any, n_rounds: int, *, is_trial: bool
) -> Record:
    """Milliseconds of the selection of all masks, and of the lists that kernels make of them.

    Args:
      compiled: what `compile_selection` has made.
      params: of the model.
      n_rounds: turns; the median is over these.
      is_trial: whether nothing is measured.
    """
    select, n_times, loops = compiled
    operands = {"selection_ms": (params,), "metadata_ms": (select(params),)}
    for name, loop in loops.items():
        if isinstance(loop, Loop):
            loop.operands = operands[name]
    warm_seconds = 0.0 if is_trial else WARM_SECONDS
    timed, failed = time_loops(loops, n_times, n_rounds, warm_seconds)
    return {name: 1e3 * found.median for name, found in timed.items()} | {"failed": failed}
