"""The numbers of an epoch are quotients of what was counted."""

import jax.numpy as jnp
import numpy as np

from sparsemlp.runs.epoch_record import changed_blocks, measures
from sparsemlp.train.evaluation import Evaluation
from sparsemlp.train.train_state import TrainState, no_totals


def state(**kept: list[bool]) -> TrainState:
    totals = {"images": 8, "loss": 20.0, "top1": 2, "top5": 6}
    assert set(totals) == set(no_totals())
    return TrainState(
        step=jnp.int32(3),
        batch_stats={},
        params={},
        optimizer=(),
        totals={name: jnp.asarray(value) for name, value in totals.items()},
        activity={},
        last_kept={path: np.asarray(blocks) for path, blocks in kept.items()},
    )


def evaluation(**kept: list[bool]) -> Evaluation:
    return Evaluation(
        top1=jnp.int32(1),
        top5=jnp.int32(3),
        loss=jnp.float32(6.0),
        images=jnp.int32(4),
        dropped_norm=jnp.float32(0.5),
        kept={path: np.asarray(blocks) for path, blocks in kept.items()},
    )


def test_losses_and_accuracies_are_means_over_the_images():
    assert measures(state(), evaluation()) == {
        "loss": 2.5,
        "train_top1": 0.25,
        "train_top5": 0.75,
        "test_top1": 0.25,
        "test_top5": 0.75,
        "test_loss": 1.5,
        "changed_blocks": 0.0,
        "dropped_norm": 0.5,
    }


def test_changed_blocks_are_a_share_of_all_blocks_of_all_layers():
    before = state(a=[True, False, True, False], b=[True, True])
    after = evaluation(a=[False, True, True, False], b=[True, False])
    assert changed_blocks(before, after) == 3 / 6
    assert changed_blocks(before, evaluation(a=[True, False, True, False], b=[True, True])) == 0
