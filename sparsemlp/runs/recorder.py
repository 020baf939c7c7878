"""What a run leaves in its folder while it trains: description, records, checkpoints, pictures."""

import contextlib
import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from sparsemlp.checkpoints.checkpoint import Checkpoints, Restored
from sparsemlp.configuration.config_file import lasting_options, to_json
from sparsemlp.configuration.program import epoch_learning_rate
from sparsemlp.distributed.parallel import own_copy, replicate
from sparsemlp.distributed.processes import shared
from sparsemlp.files import Record, write_json, write_whole
from sparsemlp.mask_trees import mask_shapes
from sparsemlp.runs.best_epoch import BestEpoch
from sparsemlp.runs.environment import describe_environment
from sparsemlp.runs.epoch_record import measures
from sparsemlp.runs.history import History
from sparsemlp.runs.keeper import Keeper
from sparsemlp.runs.mask_activity import MaskActivity
from sparsemlp.runs.pictures import draw
from sparsemlp.runs.resume import restore_run
from sparsemlp.runs.run_folder import RunFolder
from sparsemlp.runs.run_setup import RunSetup
from sparsemlp.runs.tensorboard import TensorBoard, require_tensorboardx
from sparsemlp.train.evaluation import Evaluation
from sparsemlp.train.train_state import TrainState, no_totals


class Recorder(contextlib.AbstractContextManager["Recorder"]):
    """Writes the folder of one run; whoever trains tells it what happened.

    Attributes:
      setup: what is trained; another plan may take the place of its own.
      history: the records of the run's epochs.
      checkpoints: those of the run, once it is entered.

    Args:
      setup: what is trained.
      folder: where everything goes; made before it is entered.
      title: the run in a few words, for pictures.
      save_every: seconds between checkpoints; as the settings say by default.

    Raises:
      InputError: a package is missing.
    """

    def __init__(
        self, setup: RunSetup, folder: RunFolder, title: str, *, save_every: float | None = None
    ) -> None:
        settings = setup.settings
        if settings.tensorboard:
            require_tensorboardx()
        self.setup = setup
        self.folder = folder
        self.title = title
        self._save_every = settings.checkpoint_every if save_every is None else save_every
        self.history = History(folder.metrics)
        self._board: TensorBoard | None = None
        self._best = BestEpoch(setup.schedule, settings.epochs, masks=setup.density < 1)

    def __enter__(self) -> "Recorder":
        self.checkpoints = Checkpoints(self.folder.checkpoints)
        self._keeper = Keeper(self.checkpoints, self._save_every)
        return self

    def __exit__(self, *_: object) -> None:
        self.checkpoints.close()

    def restore(self, among: Collection[int] | None = None) -> Restored | None:
        """Restores a checkpoint as `resume.restore_run`, the newest of the steps `among`."""
        return restore_run(
            self.folder,
            self.checkpoints,
            self.setup.shapes,
            steps_per_epoch=self.setup.steps_per_epoch,
            total_steps=self.setup.total_steps,
            data=self.setup.dataset.digest,
            options=lasting_options(self.setup.settings),
            among=among,
        )

    def describe(self, more: Mapping[str, Any] | None = None) -> None:
        """Writes configuration and environment; that of an earlier start is kept below it.

        What an earlier start failed for is forgotten.

        Args:
          more: what else the environment says.
        """
        earlier: list[Any] = []
        if before := self.folder.read_environment():
            known = before.pop("earlier", [])
            earlier = [*(known if isinstance(known, list) else []), before]
        text = to_json(self.setup.settings).encode()
        write_whole(self.folder.config, lambda file: file.write(text))
        mesh = self.setup.program.mesh
        data: Record = {
            "devices": 1 if mesh is None else mesh.size,
            "dataset": self.setup.dataset.source,
            "notice": self.setup.dataset.notice,
        }
        environment = describe_environment() | data | dict(more or {}) | {"earlier": earlier}
        write_json(self.folder.environment, environment)
        self.folder.failure.unlink(missing_ok=True)

    def save_first(self, state: TrainState) -> None:
        """Saves the state before the first step."""
        self.checkpoints.save(0, own_copy(state), self._metadata(0.0))

    def begin(self, step: int) -> None:
        """Opens what grows with the run, which begins or goes on at `step`.

        What it left of later steps goes, the checkpoints first: records that are cut back to an
        earlier checkpoint would not do for a later one.

        Raises:
          SaveError: the disk is full or refuses a write.
        """
        self.checkpoints.forget_after(step)
        self.history.keep_through(step // self.setup.steps_per_epoch)
        if self.setup.settings.tensorboard:
            self._board = TensorBoard(self.folder.tensorboard, step)
        self._best.restart(shared(self.history.read))

    def finish_epoch(
        self,
        state: TrainState,
        found: Evaluation,
        epoch: int,
        step: int,
        *,
        density: float,
        seconds: float,
        validation_loss: float | None = None,
        more: Mapping[str, float] | None = None,
    ) -> tuple[TrainState, Record]:
        """Writes the record of an epoch, and makes the state ready for the next.

        Args:
          state: the state after its last step.
          found: what its evaluation found.
          epoch: the epoch, from 0.
          step: steps done in the whole run.
          density: share of the weights of all masked kernels that was kept.
          seconds: time that it spent in the training programs.
          validation_loss: of the held-out images, if there are any.
          more: what else the record says.
        """
        record: Record = {
            "epoch": epoch + 1,
            "step": step,
            **measures(state, found),
            "density": density,
            "learning_rate": float(epoch_learning_rate(self.setup.settings)(epoch)),
            "seconds": seconds,
            "images_per_second": int(state.totals["images"]) / seconds,
            "dataset": self.setup.dataset.source,
            **(more or {}),
        }
        if validation_loss is not None:
            record["validation_loss"] = validation_loss
        self.history.append(record)
        totals = replicate(no_totals(), self.setup.program.mesh)
        state = dataclasses.replace(state, totals=totals, last_kept=found.kept)
        self._write_activity(state, step)
        if self._board is not None:
            self._board.write(record)
        self._best.hear(epoch, float(record["test_top1"]))
        return state, record

    def offer(
        self,
        step: int,
        state: TrainState,
        seconds: float,
        *,
        counted: Mapping[str, float] | None = None,
        now: bool,
    ) -> None:
        """Saves the state if it is time; an epoch that was the best so far will not be lost.

        Args:
          step: steps done.
          state: the state after them.
          seconds: time that the epoch under way has spent in the training programs.
          counted: what else it has counted, as `PhasedTrainer.counted`.
          now: whether to save whatever the time.
        """
        best, metadata = self._best.take(), self._metadata(seconds, counted)
        self._keeper.offer(step, own_copy(state), metadata, best, now=now)

    def save_waiting(self) -> None:
        """Saves the best epoch since the last save, if there is one."""
        self._keeper.save_waiting()

    def end(self, step: int, state: TrainState) -> Record | None:
        """Writes activity and pictures, and the summary of a run that is complete.

        Returns:
          The summary; None if steps are left.
        """
        if self._board is not None:
            self._board.close()
        self._write_activity(state, step)
        draw(self.folder, self.title)
        return self._summarise() if step == self.setup.total_steps else None

    def not_finite(self, epoch: int, step: int) -> str:
        """Says when the run broke down, the epoch counted from 0, and what is left of it."""
        good = self.folder.checkpoints / str(self.checkpoints.steps()[-1])
        return (
            f"loss or parameters became NaN or infinite in epoch {epoch + 1}, at or before step "
            f"{step}; the last good checkpoint is {good}; start a new run with a lower --lr, or go "
            f"on with --resume {self.folder.path} --allow-nan"
        )

    def _metadata(self, seconds: float, counted: Mapping[str, float] | None = None) -> Record:
        dataset = self.setup.dataset
        return {
            "seconds": seconds,
            "counted": dict(counted or {}),
            "dataset": dataset.source,
            "data": dataset.digest,
            "options": lasting_options(self.setup.settings),
        }

    def _write_activity(self, state: TrainState, step: int) -> None:
        grids = mask_shapes(self.setup.shapes.params, self.setup.program.model.plan)
        counts = {
            path: np.asarray(count).reshape(grids[path].grid_shape)
            for path, count in state.activity.items()
        }
        masked_steps = max(0, step - self.setup.schedule.start * self.setup.steps_per_epoch)
        activity = MaskActivity(counts, masked_steps)
        activity.write(self.folder.mask_activity, self.setup.dataset.source)

    def _summarise(self) -> Record:
        records = self.history.read()
        summary: Record = {
            "dataset": self.setup.dataset.source,
            "notice": self.setup.dataset.notice,
            "epochs": self.setup.settings.epochs,
            "steps": self.setup.total_steps,
            "parameters": self.setup.parameters,
            "density": records[-1]["density"],
            "loss": records[-1]["loss"],
            "test_top1": records[-1]["test_top1"],
            "test_top5": records[-1]["test_top5"],
            "best_test_top1": self._best.top1,
            "seconds": sum(float(record["seconds"]) for record in records),
        }
        write_json(self.folder.summary, summary)
        return summary
