"""The training of one population: one loop over the steps, a folder for each member."""

import dataclasses
import statistics
import time
from collections.abc import Collection, Iterator, Sequence

import jax
import numpy as np

from sparsemlp.checkpoints.checkpoint import Restored
from sparsemlp.errors import InputError, NotFiniteError
from sparsemlp.files import Record
from sparsemlp.populations.population_trainer import PopulationTrainer
from sparsemlp.runs.interruption import CHUNK_SECONDS, Interruption
from sparsemlp.runs.progress import Reporter
from sparsemlp.runs.recorder import Recorder
from sparsemlp.schedule import Phase
from sparsemlp.train.train_state import TrainState

_BETWEEN_SAVES = 20
"""How many times as long as the last save, of all members, the next one is put off at least."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a member ended; interrupted, and resumable, if it has neither summary nor failure.

    Attributes:
      summary: what is in `summary.json`, if the run is complete.
      failure: why it failed; `NotFiniteError` if loss or parameters became NaN or infinite.
    """

    summary: Record | None = None
    failure: Exception | None = None


class MemberError(Exception):
    """A member cannot go on from where the others can.

    Args:
      index: which member.
      reason: why it cannot.
    """

    def __init__(self, index: int, reason: InputError) -> None:
        super().__init__(str(reason))
        self.index = index
        self.reason = reason


class PopulationRun:
    """Runs that are trained together from the same step on.

    Args:
      recorders: of the members, entered; they save when they are told to.
      trainer: of the same members, in the same order.
    """

    def __init__(self, recorders: Sequence[Recorder], trainer: PopulationTrainer) -> None:
        self._recorders = recorders
        self._trainer = trainer
        self._settings = recorders[0].setup.settings
        self._outcomes = [Outcome()] * len(recorders)
        self._last_save, self._save_every = time.monotonic(), self._settings.checkpoint_every

    @property
    def _alive(self) -> Iterator[tuple[int, Recorder]]:
        """The members that have not failed."""
        for index, recorder in enumerate(self._recorders):
            if self._outcomes[index].failure is None:
                yield index, recorder

    def train(
        self, reporter: Reporter, interruption: Interruption, *, resume: bool
    ) -> list[Outcome]:
        """Trains until all members are complete or failed, or a signal asks to stop.

        Raises:
          MemberError: on resumption, before anything is written.
        """
        trainer, total_steps = self._trainer, self._recorders[0].setup.total_steps
        state, step = self._start(resume=resume)
        reporter.begins_at(step, total_steps)
        while step < total_steps and any(self._alive):
            epoch, position = divmod(step, trainer.steps_per_epoch)
            phase = self._recorders[0].setup.schedule.phase(epoch, ())
            if not trainer.is_compiled(position, phase):
                reporter.waiting("compiling")
            state, n_steps, healthy = trainer.train(
                state, epoch, position, seconds=CHUNK_SECONDS, phase=phase
            )
            step += n_steps
            self._give_up(reporter, healthy, epoch, step)
            self._report(reporter, state, epoch, step)
            if step % trainer.steps_per_epoch == 0:
                reporter.waiting("evaluating")
                state = self._finish_epoch(reporter, state, epoch, step, phase)
            # Read once: a signal that comes while this saves is obeyed after the next chunk.
            stopped = interruption.signal is not None
            self._save(state, step, now=step == total_steps or stopped)
            if stopped:
                break
        for index, recorder in self._alive:
            summary = recorder.end(step, trainer.member(state, index))
            self._outcomes[index] = Outcome(summary=summary)
        return self._outcomes

    def _start(self, *, resume: bool) -> tuple[TrainState, int]:
        """The state to begin with, saved already, and its step; then says what the runs are."""
        states, seconds, step = self._restore() if resume else (None, 0.0, 0)
        population = {"members": self._trainer.n_members, "engine": "reference"}
        for recorder in self._recorders:
            recorder.describe({"population": population, "devices": 1})
        state = self._trainer.initial() if states is None else self._trainer.stack(states)
        for index, recorder in enumerate(self._recorders):
            if not recorder.checkpoints.steps():
                recorder.save_first(self._trainer.member(state, index))
            recorder.checkpoints.pinned = step
            recorder.begin(step)
        self._trainer.seconds = seconds * self._trainer.n_members
        return state, step

    def _restore(self) -> tuple[list[TrainState] | None, float, int]:
        """States, seconds of a member in its epoch, and the newest step that all have intact."""
        saved = [set(recorder.checkpoints.steps() or [0]) for recorder in self._recorders]
        common = set.intersection(*saved)
        while True:
            restored = [self._restore_member(index, common) for index in range(len(saved))]
            steps = [0 if each is None else each.step for each in restored]
            if len(set(steps)) == 1:
                break
            common = {step for step in common if step <= min(steps)}
        found = [each for each in restored if each is not None]
        if not steps[0] or not found:
            return None, 0.0, 0
        seconds = statistics.fmean(float(each.metadata["seconds"]) for each in found)
        return [each.state for each in found], seconds, steps[0]

    def _restore_member(self, index: int, among: Collection[int]) -> Restored | None:
        try:
            return self._recorders[index].restore(among)
        except InputError as error:
            raise MemberError(index, error) from error

    def _give_up(self, reporter: Reporter, healthy: list[bool], epoch: int, step: int) -> None:
        if self._settings.allow_nan:
            return
        for index, recorder in list(self._alive):
            if not healthy[index]:
                recorder.save_waiting()
                failure = NotFiniteError(recorder.not_finite(epoch, step))
                recorder.folder.write_failure(failure)
                self._outcomes[index] = Outcome(failure=failure)
                reporter.say(f"{recorder.title}: {failure}")

    def _finish_epoch(
        self, reporter: Reporter, state: TrainState, epoch: int, step: int, phase: Phase
    ) -> TrainState:
        """Evaluates, and writes the records of the epoch."""
        trainer = self._trainer
        found = trainer.evaluate(state, phase)
        seconds, trainer.seconds = trainer.seconds / trainer.n_members, 0.0
        records = [
            recorder.finish_epoch(
                trainer.member(state, index),
                trainer.evaluation_of(found, index),
                epoch,
                step,
                density=recorder.setup.density if phase.masked else 1.0,
                seconds=seconds,
            )[1]
            for index, recorder in self._alive
        ]
        if records:
            reporter.epoch(_means(records), len(records))
        return trainer.next_epoch(state, found)

    def _save(self, state: TrainState, step: int, *, now: bool) -> None:
        """Saves all members or none, so that they always have a step in common."""
        trainer = self._trainer
        began = time.monotonic()
        now = now or began - self._last_save >= self._save_every
        if not now and step % trainer.steps_per_epoch:
            return
        seconds = trainer.seconds / trainer.n_members
        for index, recorder in self._alive:
            recorder.offer(step, trainer.member(state, index), seconds, now=now)
        if now:
            for _, recorder in self._alive:
                recorder.checkpoints.pinned = step
            self._last_save = time.monotonic()
            if self._save_every > 0:
                took = self._last_save - began
                self._save_every = max(self._settings.checkpoint_every, _BETWEEN_SAVES * took)

    def _report(self, reporter: Reporter, state: TrainState, epoch: int, step: int) -> None:
        totals = jax.device_get(state.totals)
        alive = [index for index, _ in self._alive]
        if not alive:
            return
        images, seconds = totals["images"][alive], self._trainer.seconds
        n_images = int(totals["images"].sum())
        reporter.steps(
            done=step,
            total=self._recorders[0].setup.total_steps,
            epoch=epoch + 1,
            loss=float(np.mean(totals["loss"][alive] / images)),
            top1=float(np.mean(totals["top1"][alive] / images)),
            rate=n_images / seconds if seconds else None,
        )


def _means(records: Sequence[Record]) -> Record:
    """The mean of each measure over the records of one epoch."""
    return {
        key: statistics.fmean(record[key] for record in records)
        if isinstance(value, float)
        else value
        for key, value in records[0].items()
    }
