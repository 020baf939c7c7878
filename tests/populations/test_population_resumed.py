"""A population that was stopped or killed goes on, and ends as one that never was."""

import dataclasses
import signal
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest
import small_population
from small_population import Quiet, assert_same_as, population, train

from sparsemlp.checkpoints.checkpoint import Checkpoints
from sparsemlp.errors import InputError
from sparsemlp.populations import population as population_module
from sparsemlp.populations import population_run
from sparsemlp.populations.population import Outcome
from sparsemlp.runs.interruption import Interruption

together = small_population.together


class Killed(BaseException):
    """Stands for the end of the process."""


def kill(*_: Any, **__: Any) -> None:
    raise Killed


@pytest.mark.thorough
def test_an_interrupted_population_resumes_and_ends_the_same(together, tmp_path, monkeypatch):
    monkeypatch.setattr(population_run, "CHUNK_SECONDS", 0.0)
    interruption = Interruption()

    def stop() -> None:
        interruption.signal = signal.SIGTERM

    members = population(tmp_path)
    ended = train(members, Quiet(4, stop), interruption=interruption)
    assert ended == [Outcome()] * 3
    assert all(not own.folder.summary.exists() for own in members)
    ended = train(members, resume=True)
    assert all(outcome.summary is not None for outcome in ended)
    assert_same_as(tmp_path, together[0])


@pytest.mark.thorough
def test_a_member_that_cannot_follow_is_left_to_itself_and_the_others_go_on_together(
    together, tmp_path, monkeypatch
):
    monkeypatch.setattr(population_run, "CHUNK_SECONDS", 0.0)
    interruption = Interruption()

    def stop() -> None:
        interruption.signal = signal.SIGTERM

    members = population(tmp_path)
    train(members, Quiet(4, stop), interruption=interruption)
    members[1].folder.metrics.unlink()
    reporter = Quiet()
    first, lost, last = train(members, reporter, resume=True)
    assert first.summary is not None
    assert last.summary is not None
    assert isinstance(lost.failure, InputError)
    assert "lacks records of the 2 epochs" in str(lost.failure)
    assert any("left to itself, and the others go on together" in line for line in reporter.said)
    for own in (members[0], members[2]):
        environment = own.folder.read_environment()
        assert environment is not None
        assert environment["population"]["members"] == 2


@pytest.mark.slow
def test_a_population_killed_while_it_saves_goes_on_from_the_last_step_of_all(
    together, tmp_path, monkeypatch
):
    """Every step is saved; of step 5 only some members are."""
    members = population(tmp_path)
    members = [
        own._replace(settings=dataclasses.replace(own.settings, checkpoint_every=0.0))
        for own in members
    ]
    save, saved = Checkpoints.save, []

    def save_some(self: Checkpoints, step: int, *more: Any) -> None:
        if step == 5:
            if saved:
                raise Killed
            saved.append(step)
        save(self, step, *more)

    with monkeypatch.context() as patch:
        patch.setattr(population_run, "CHUNK_SECONDS", 0.0)
        patch.setattr(Checkpoints, "save", save_some)
        with pytest.raises(Killed):
            train(members)
    newest = [Checkpoints(own.folder.checkpoints).steps()[-1] for own in members]
    assert newest == [5, 4, 4]
    with monkeypatch.context() as patch:
        patch.setattr(population_run.PopulationTrainer, "train", kill)
        with pytest.raises(Killed):
            train(members, resume=True)
    # Each could go on alone: what a member had of later steps is gone with its records.
    newest = [Checkpoints(own.folder.checkpoints).steps()[-1] for own in members]
    assert newest == [4, 4, 4]
    train(members, resume=True)
    assert_same_as(tmp_path, together[0])


def test_members_have_the_pinned_step_in_common_when_one_saved_twice(unchecked, tmp_path):
    """Its best epoch since, and where it was; the process ended before the other saved."""
    first, second = Checkpoints(tmp_path / "first"), Checkpoints(tmp_path / "second")
    for own in (first, second):
        for step in (0, 100):
            own.save(step, {"a": jnp.ones(1)}, {})
        own.pinned = 100
    first.save(150, {"a": jnp.ones(1)}, {}, score=0.5)
    first.save(200, {"a": jnp.ones(1)}, {})
    recorders: Any = [SimpleNamespace(checkpoints=own) for own in (first, second)]
    assert first.recent() == [100, 150, 200]
    assert population_module._by_step(recorders) == [[0, 1]]


class Saved:
    """A recorder whose last two checkpoints are of these steps."""

    def __init__(self, *steps: int) -> None:
        self.checkpoints = self
        self._steps = list(steps)

    def recent(self) -> list[int]:
        return self._steps[-2:]


@pytest.mark.parametrize(
    ("saved", "groups"),
    [
        ([(4, 5), (3, 4), (4,)], [[0, 1, 2]]),
        ([(), (0,)], [[0, 1]]),
        ([(0, 5), (0,), ()], [[0, 1, 2]]),
        # The last one is new, and the others have done much without saving in between.
        ([(0, 5000), (0, 5000), ()], [[0, 1], [2]]),
        # They share a best epoch, far behind what each has done.
        ([(300, 4950, 5000), (300, 350, 400)], [[0], [1]]),
    ],
)
def test_members_go_on_together_from_a_step_that_costs_none_much(unchecked, saved, groups):
    recorders: Any = [Saved(*steps) for steps in saved]
    assert population_module._by_step(recorders) == groups
