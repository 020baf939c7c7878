"""What an epoch measured, as numbers: of its training steps, its evaluation and its masks."""

import jax
import numpy as np

from sparsemlp.files import Record
from sparsemlp.train.evaluation import Evaluation
from sparsemlp.train.train_state import TrainState


def measures(state: TrainState, found: Evaluation) -> Record:
    """Loss and accuracies of an epoch, and what became of its blocks.

    Args:
      state: the state after its last step, with the totals of its steps and the masks at its begin.
      found: what its evaluation found.

    Returns:
      `loss` (mean over the images, nats) and `train_top1`, `train_top5` of the augmented training
      images as they were seen; `test_top1`, `test_top5`, `test_loss`; `changed_blocks`, the share
      of all blocks that were dropped or regrown; `dropped_norm`, the l2 norm of dropped weights.
    """
    totals = jax.device_get(state.totals)
    n_images, n_test = int(totals["images"]), int(found.images)
    return {
        "loss": float(totals["loss"]) / n_images,
        "train_top1": int(totals["top1"]) / n_images,
        "train_top5": int(totals["top5"]) / n_images,
        "test_top1": int(found.top1) / n_test,
        "test_top5": int(found.top5) / n_test,
        "test_loss": float(found.loss) / n_test,
        "changed_blocks": changed_blocks(state, found),
        "dropped_norm": float(found.dropped_norm),
    }


def changed_blocks(state: TrainState, found: Evaluation) -> float:
    """The share of the blocks that were dropped or regrown since the end of the last epoch."""
    before, after = jax.device_get(state.last_kept), jax.device_get(found.kept)
    changed = sum(int(np.sum(before[path] != after[path])) for path in after)
    n_blocks = sum(after[path].size for path in after)
    return changed / n_blocks if n_blocks else 0.0
