"""What a crash loses is bounded, what saving costs too, and the best epoch is not lost."""

import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from sparsemlp.checkpoints.checkpoint import Checkpoints
from sparsemlp.runs import keeper as keeper_module
from sparsemlp.runs.keeper import Keeper
from sparsemlp.train.train_state import TrainState, no_totals


def state(value: float) -> TrainState:
    return TrainState(
        step=jnp.int32(value),
        batch_stats={},
        params={"x": jnp.full(3, value)},
        optimizer=(),
        totals=no_totals(),
        activity={},
        last_kept={},
    )


class Clock:
    """A clock that stands until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(keeper_module, "time", types.SimpleNamespace(monotonic=clock.monotonic))
    return clock


def steps(folder: Path) -> list[int]:
    with Checkpoints(folder) as checkpoints:
        return checkpoints.steps()


def offer(keeper: Keeper, step: int, *, score: float | None = None, now: bool = False) -> None:
    """Offers a state and deletes it, as the next call of the training program does."""
    offered = state(step)
    keeper.offer(step, offered, {"step": step}, score, now=now)
    for leaf in jax.tree.leaves(offered):
        leaf.delete()


def values(folder: Path, step: int) -> Any:
    """What the checkpoint of a step holds."""
    with Checkpoints(folder) as checkpoints:
        for later in [s for s in checkpoints.steps() if s > step]:
            (folder / str(later)).rename(folder / f"not-{later}")
        restored = checkpoints.restore(state(0))
    assert restored.step == restored.metadata["step"] == step
    return restored.state.params["x"].tolist()


def test_saves_as_often_as_asked_and_not_more_often(tmp_path, clock):
    with Checkpoints(tmp_path) as checkpoints:
        keeper = Keeper(checkpoints, 30.0)
        newest = []
        for step in range(1, 21):
            clock.now += 10
            offer(keeper, step)
            newest.append(max(checkpoints.steps(), default=0))
    assert newest == [step // 3 * 3 for step in range(1, 21)]


def test_every_zero_seconds_is_after_every_chunk(tmp_path, clock):
    with Checkpoints(tmp_path) as checkpoints:
        keeper = Keeper(checkpoints, 0.0)
        for step in (1, 2, 3):
            offer(keeper, step)
            assert checkpoints.steps()[-1] == step
    assert values(tmp_path, 3) == [3.0] * 3


def test_the_last_state_is_saved_at_once(tmp_path, clock):
    with Checkpoints(tmp_path) as checkpoints:
        keeper = Keeper(checkpoints, 1e6)
        offer(keeper, 1)
        assert checkpoints.steps() == []
        offer(keeper, 2, now=True)
    assert steps(tmp_path) == [2]


def test_the_best_epoch_between_two_saves_is_kept(tmp_path, clock):
    with Checkpoints(tmp_path) as checkpoints:
        keeper = Keeper(checkpoints, 100.0)
        for step, score in ((1, 0.1), (2, 0.9), (3, None), (4, None)):
            offer(keeper, step, score=score)
        for step in (5, 6, 7):
            clock.now += 100
            offer(keeper, step)
        assert checkpoints.steps() == [2, 6, 7]
    assert values(tmp_path, 2) == [2.0] * 3


def test_an_earlier_best_gives_way_to_a_better_one_that_is_saved_itself(tmp_path, clock):
    with Checkpoints(tmp_path) as checkpoints:
        keeper = Keeper(checkpoints, 100.0)
        offer(keeper, 1, score=0.5)
        offer(keeper, 2, score=0.6, now=True)
        for step in (3, 4, 5):
            offer(keeper, step, now=True)
        assert checkpoints.steps() == [2, 4, 5]
